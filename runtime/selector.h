// The global choice of chunks for this rank's queries, by one of two strategies with the same result:
//     landmarks   every rank gathers all landmark tables and scores its own queries against them
//     scores      landmarks stay sharded; the queries of a tile visit all ranks, each scores its own landmarks, and the
//                 per-head score lists (with their LogSums) are gathered by the owner of the query
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/communicator.h"
#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/positions/cache_positions.h"
#include "kernels/select_chunks.h"
#include "kvstore/landmark_table.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/merge_strategy.h"
#include "runtime/progress_sink.h"

namespace ringmark::runtime {

// Bytes that the busiest rank receives under each strategy: the same on every rank, so that all choose alike.
struct MergeCost {
  std::int64_t landmark_bytes = 0;  // the other ranks' records
  std::int64_t score_bytes = 0;     // visiting queries and the lists that come back
  std::int64_t table_bytes = 0;     // the whole table, as held under `landmarks`
};
MergeCost merge_cost(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout);

// kAuto becomes the strategy that moves fewer bytes, unless its table would not fit.
Merge choose_merge(Merge asked, const MergeCost& cost, std::int64_t table_budget);

struct SelectorInput {
  const AttentionProblem& problem;
  const AttentionPolicy& policy;
  const partition::SequenceGrid& grid;
  const partition::Layout& layout;
  std::span<const TokenId> tokens;    // [rows] of this rank
  RowsView queries;                   // [rows, H, d] the queries that score (retrieval queries for hils)
  std::span<const float> lse_window;  // [rows, H]; looked at from `first_row` on
  int threads = 1;
  std::int64_t first_row = 0;     // rows before it have chosen
  std::int64_t tile_rows = 4096;  // rows between two looks at `stop`, at most
  std::function<bool()> stop = [] { return false; };
  const kernels::CachePositions* cache = nullptr;  // with stingy landmark positions
};

// Bytes that this rank receives when all rows of all ranks choose.
std::int64_t received_bytes(const SelectorInput& input, RankId rank, Merge merge);

// Candidate lists of any rows against the landmarks of this rank: [rows, H, d] queries and their tokens.
using ScoreRows = std::function<kernels::CandidateLists(const RowsView& queries, std::span<const TokenId> tokens)>;

// Collective: the `scores` merge with a scorer of the caller's. Ends early, on all ranks after the same round, when one
// is told to stop. Returns the end of the rows that have chosen.
std::int64_t merge_scores(comm::Communicator& communicator, const SelectorInput& input, const ScoreRows& score,
                          kernels::Selection& selection, ProgressSink& progress);

// Collective; under `landmarks` a rank that is told to stop ends on its own. `selection` has room for all rows. Returns
// the end of the rows that have chosen. Throws Error(kPeer) when a peer misses a deadline.
std::int64_t select_chunks(comm::Communicator& communicator, const SelectorInput& input,
                           kvstore::LandmarkTable& landmarks, Merge merge, kernels::Selection& selection,
                           ProgressSink& progress);

}  // namespace ringmark::runtime
