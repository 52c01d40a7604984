// The backward pass of build_landmarks: from dL/dk'_c and dL/db'_c to the chunk's keys and its landmark query.
//     hils    dz_j = p_j [(k_j - k'_c) . dk'_c - db'_c (ln p_j + b'_c)],  dq'_c = a sum_j dz_j k_j,
//             dk_j += a dz_j q'_c + p_j dk'_c
//     mean    dk_j += dk'_c / |T_c|; b'_c is constant
// Source: docs/numerics.md, "Backward".
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/gradient_table.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// chunks          present in `blocks` and `gradients`; those without a landmark are passed over
// landmark_rows   [chunks.size(), H, d]: landmark query of each listed chunk (hils only; may be empty otherwise)
// records         chunks.size() landmark records of the forward
// gradients       in: dk', db' of all rows of all ranks; dk is added to
// query_gradient  [chunks.size(), H, d] dq', written for chunks with a landmark (hils only)
void landmark_gradients(const AttentionProblem& problem, Scorer scorer, const partition::SequenceGrid& grid,
                        std::span<const ChunkId> chunks, const RowsView& landmark_rows, const BlockTable& blocks,
                        std::span<const float> records, const GradientTable& gradients,
                        TensorView<float, 3> query_gradient, int threads);

}  // namespace ringmark::kernels
