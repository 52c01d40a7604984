// Exact causal attention of one layer over all ranks: what prefill() approximates, and what it is measured against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "partition/layout.h"
#include "runtime/dense/cost_model.h"
#include "runtime/dense/team_work.h"
#include "runtime/layer_shard.h"
#include "runtime/progress_sink.h"
#include "runtime/stage_clock.h"

namespace ringmark::runtime::dense {

// The policy whose window holds every key: exact causal attention, as grids and the reference know it.
inline AttentionPolicy whole_window(const AttentionProblem& problem) { return {problem.tokens, 0, 0, Scorer::kNone}; }

struct Options {
  Strategy strategy = Strategy::kRing;                 // resolved
  int ulysses_ranks = 1;                               // of a group; 1 but for the two Ulysses
  std::int64_t fetch_budget = std::int64_t{64} << 20;  // bytes of gathered keys held at once; the same on every rank
  int threads = 1;
  Trace* trace = nullptr;
};

struct Result {
  std::vector<float> out;  // [rows, H, d]
  std::vector<float> lse;  // [rows, H] natural log
  ReceivedBytes received;
  StageClock clock;  // store, exchange, fetch (waiting that no attention hides), attend, merge
};

// Collective. `grid` is that of whole_window(); `shard` holds the rows of this rank in the order of `layout`; its K and
// V are moved into blocks and released. Throws Error(kPeer) when a peer misses a deadline.
Result prefill(comm::Communicator& communicator, const AttentionProblem& problem, const partition::SequenceGrid& grid,
               const partition::Layout& layout, LayerShard& shard, const Options& options, ProgressSink& progress);

// Collective: the same for some of the rank's rows, as many as it likes, over keys and values that stand in blocks
// already. `tokens`, ascending, are those of `queries` [rows, H, d], whose type need not be that of the keys; the own
// blocks are listed in `blocks`. Every strategy without groups of heads. The result holds these rows.
Result attend_rows(comm::Communicator& communicator, const AttentionProblem& problem,
                   const partition::SequenceGrid& grid, const partition::Layout& layout, const RowsView& queries,
                   std::span<const TokenId> tokens, kernels::BlockTable& blocks, const Options& options,
                   ProgressSink& progress);

}  // namespace ringmark::runtime::dense
