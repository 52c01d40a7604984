// LoGo prefill of one layer (arXiv 2608.29539): every row attends to its window, and the rows whose gate is above a
// threshold attend to all keys too. Only their queries enter the dense engine, packed, so that a share of the rows
// costs that share of dense attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/dense/prefill.h"
#include "runtime/layer_shard.h"
#include "runtime/logo/branch_tensors.h"
#include "runtime/memory_plan.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime::logo {

struct Options {
  dense::Options global;   // strategy of the global branch, without groups of heads; threads, budget and trace of both
  double threshold = 0.5;  // rows with a gate above it attend globally
  BranchWeights weights = {};
};

struct Result {
  std::vector<float> out;     // [rows, H, d]
  std::vector<float> lse;     // [rows, H] natural log: of all keys for rows that attend globally, else of the window
  std::int64_t selected = 0;  // rows of all ranks that attend globally
  std::int64_t bytes_fetched = 0;  // K and V bytes this rank received for windows
  dense::ReceivedBytes received;   // for the global branch
  StageClock clock;                // store, plan, fetch, window, attend, merge, fuse
};

// Collective. `policy` is that of the local branch; `gates` are those of the rank's rows. `shard` holds the rows in the
// order of `layout`; its K and V are moved into blocks and released. Under Strategy::kAllGather no rank count changes a
// bit. Throws Error(kPeer) when a peer misses a deadline.
Result prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
               const AttentionPolicy& policy, const partition::Layout& layout, LayerShard& shard,
               std::span<const float> gates, const Options& options, ProgressSink& progress);

// What a rank will hold if all of its rows attend globally, before anything of it is allocated.
MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options);

}  // namespace ringmark::runtime::logo
