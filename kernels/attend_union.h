// Attention over all keys of the chosen chunks in one softmax with the window.
#pragma once

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// For every row i and head h, with the chosen chunks I of its chooser and T_c = SequenceGrid::keys_of(c):
//     lse' = logsumexp over j in the T_c of I of (scale q_i . k_j), and lse
//     out' = sum_j exp(scale q_i . k_j - lse') v_j  +  exp(lse - lse') out
//
// queries    [rows, H, d]
// selection  chosen chunks of all rows; their blocks must be present for the range
// out, lse   in: window result of the rows; out: that of the union. Rows without a chosen chunk stay as they are; a row
//            with nothing to see gets out = 0, lse = -inf.
// The softmax of the window goes on over the chunks in ascending order, so the result depends on neither tile, layout
// nor rank count. Source: docs/numerics.md, "Mixture".
void attend_union(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                  const Selection& selection, RowRange rows, const BlockTable& blocks, TensorView<float, 3> out,
                  TensorView<float, 2> lse, int threads);

}  // namespace ringmark::kernels
