// Which blocks the rows of a shard need: what the fetch planner plans for.
#pragma once

#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"
#include "runtime/fetch_plan.h"

namespace ringmark::runtime {

// Window and sink blocks of every row. The arguments outlive the result.
RowNeeds window_needs(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                      const std::vector<TokenId>& tokens);

// The chosen blocks of every row from `first` on: of a chunk those of the kv heads that the heads of its chooser read.
// The selection outlives the result.
RowNeeds chosen_needs(const AttentionProblem& problem, const kernels::Selection& selection, std::int64_t first);

// Chunks besides its own that a row may read at once: those of its window and sinks, or those that it chose.
std::int64_t most_chunks_of_a_row(const AttentionProblem& problem, const AttentionPolicy& policy,
                                  const partition::SequenceGrid& grid);

// The chunks that a range of rows chose, ascending, each once.
std::vector<ChunkId> chosen_in(const kernels::Selection& selection, RowRange rows);

}  // namespace ringmark::runtime
