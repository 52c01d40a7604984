// The global choice of chunks for this rank's rows, on its GPU. Same strategies and same result as runtime/selector.h.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "kernels/cuda/score.h"
#include "runtime/cuda/timeline.h"
#include "runtime/cuda/workspace.h"
#include "runtime/selector.h"

namespace ringmark::runtime::cuda {

struct DeviceSelectorInput {
  kernels::cuda::Path path;
  const kernels::cuda::LayerShape& shape;
  const kernels::cuda::Geometry& geometry;
  const std::byte* queries;  // [rows, H, d] those that score
};

// What a choice cost.
struct ChoiceCount {
  std::int64_t pairs = 0;        // (row, kv head) pairs
  std::int64_t exact_pairs = 0;  // settled by the exact scorer
};

// Scores all rows against the records of every chunk (workspace.record_table) and leaves selection and chosen scores in
// the workspace. Tensor core paths score approximately first and exactly only what is too close; kSimt is exact. Its
// stages are timed as "score", "settle" and "exact".
ChoiceCount select_with_all_landmarks(const DeviceSelectorInput& input, Workspace& workspace, Timeline& timeline);

// A scorer for runtime::merge_scores: exact lists of visiting rows against the records that are here. `grid` outlives
// the result.
ScoreRows exact_scorer(const kernels::cuda::LayerShape& shape, const partition::SequenceGrid& grid,
                       Workspace& workspace);

}  // namespace ringmark::runtime::cuda
