// Attention to the keys of chosen chunks in one softmax: the selected branch of NSA.
//     out = sum_j softmax_j(a q_i . k_j) v_j,  lse = ln sum_j e^(a q_i . k_j)      j <= i over the keys of the chunks
// Source: docs/numerics.md, "NSA".
#pragma once

#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/gated_rows.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// For the rows in `rows`: adds the branch to `into` and writes its lse ([rows, H]; -inf for a row without keys). The
// chosen chunks of these rows must be in `blocks`; of its own chunk a row sees the keys up to itself. A row walks its
// chunks in ascending order: its bits depend on nothing else.
void attend_selected(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                     std::span<const TokenId> tokens, const Selection& selection, RowRange rows,
                     const BlockTable& blocks, const GatedRows& into, TensorView<float, 2> lse, int threads);

}  // namespace ringmark::kernels
