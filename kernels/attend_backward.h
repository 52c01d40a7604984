// The backward pass of attend_window and attend_chunks: from dL/do to the gradients of queries, keys and values.
//
// With g_i = dL/do_i, L_i the final lse and Delta_i = g_i . o_i of a row, a = scale (docs/numerics.md, "Backward"):
//     key of the window   p = e^(s_ij - L_i),         ds_ij = p (g_i . v_j - Delta_i)
//     key of a choice     p = w_ic pi_ij|c,           ds_ij = p (g_i . v_j - delta_ic),   delta_ic = sum_j pi_ij|c g_i
//     . v_j score of a choice   w_ic = e^(s_ic - L_i),      ds_ic = w_ic (delta_ic - Delta_i) dq_i += a ds_ij k_j, dk_j
//     += a ds_ij q_i,  dv_j += p g_i,  dq~_i += a ds_ic k'_c,  dk'_c += a ds_ic q~_i, db'_c += ds_ic
// Nothing but L_i and Delta_i is kept from the forward: scores and the softmax inside a chunk are computed again, to
// the same bits. The two functions walk the same chunks, one for the rows and one for the keys, so that every sum has
// one owner: no atomics, and no result depends on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/attend_chunks.h"
#include "kernels/block_table.h"
#include "kernels/gradient_table.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// Rows and what the forward left of them.
struct BackwardRows {
  const AttentionProblem& problem;
  const partition::SequenceGrid& grid;
  RowsView queries;                         // [rows, H, d]
  RowsView scoring_queries;                 // [rows, H, d] q~; may be the same view
  std::span<const TokenId> tokens;          // [rows] their ids, ascending
  const Selection& selection;               // [rows, Hkv, K]; K = 0: window only
  TensorView<const float, 3> out_gradient;  // [rows, H, d] g
  TensorView<const float, 2> lse;           // [rows, H] L; rows of -inf saw nothing and have no part in any gradient
  TensorView<const float, 2> delta;         // [rows, H] Delta
};

// delta [rows, H] = out . out_gradient of every row and head, each [rows, H, d].
void row_deltas(TensorView<const float, 3> out, TensorView<const float, 3> out_gradient, TensorView<float, 2> delta,
                int threads);

// Rows that read a block: those that see keys of the chunk in their window or as sinks, and those that chose it.
struct ReaderCount {
  std::int64_t nearby = 0;
  std::int64_t chosen = 0;
};
// [chunks of the range, Hkv]
std::vector<ReaderCount> count_readers(const BackwardRows& rows, Range<ChunkId> chunks, int threads);

// Adds to dq and dq~ [rows, H, d] what comes from these chunks; their blocks that some row sees and the records of
// those that some row chose must be present. dq~ may be dq. A row adds its chunks in ascending order and the keys of a
// chunk in ascending order: chunk ranges in ascending order give the same bits however they are cut, on any number of
// ranks.
void query_gradients(const BackwardRows& rows, Range<ChunkId> chunks, const BlockTable& blocks,
                     const LandmarkRecords& landmarks, TensorView<float, 3> query_gradient,
                     TensorView<float, 3> scoring_gradient, int threads);

// Adds to the records of these chunks what comes from these rows, which are added in ascending order: those that see
// the chunk in their window, those that see sinks of it, those that chose it. Records of chunks that no row sees are
// not looked at.
void key_gradients(const BackwardRows& rows, Range<ChunkId> chunks, const BlockTable& blocks,
                   const LandmarkRecords& landmarks, const GradientTable& gradients, int threads);

}  // namespace ringmark::kernels
