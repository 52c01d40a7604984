// Dilated attention of one layer over all ranks (kernels/dilation.h): a sum of patterns from short and dense to long
// and sparse, whose cost grows with the length and not with its square.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/dilation.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"
#include "runtime/memory_plan.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime::dilated {

struct Options {
  std::vector<kernels::Dilation> dilations = {};       // validated
  std::int64_t fetch_budget = std::int64_t{64} << 20;  // bytes of received blocks held at once
  int threads = 1;
  Trace* trace = nullptr;
};

struct Result {
  std::vector<float> out;          // [rows, H, d]
  std::vector<float> lse;          // [rows, H] natural log; over all pairs, a key counts once for each
  std::int64_t bytes_fetched = 0;  // K and V bytes this rank received
  StageClock clock;                // store, plan, fetch (waiting that no attention hides), attend, merge
};

// Collective. `shard` holds the rows of this rank in the order of `layout`; its K and V are moved into blocks and
// released. The pairs are done one after the other, and of each the keys stretch by stretch in ascending order, so that
// the result does not depend on the ranks by a bit. Throws Error(kBadInput) naming fetch-mib where the budget does not
// hold two stretches, Error(kPeer) when a peer misses a deadline.
Result prefill(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
               const partition::SequenceGrid& grid, const partition::Layout& layout, LayerShard& shard,
               const Options& options, ProgressSink& progress);

// What a rank will hold, before anything of it is allocated.
MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options);

}  // namespace ringmark::runtime::dilated
