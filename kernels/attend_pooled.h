// The compressed branch of NSA, and the choice that its probabilities make. For a token i and a query head:
//     p_c = softmax_c(a q_i . key_c) over the chunks that are complete at i,  out = sum_c p_c value_c
// importance of c for a kv head: the sum of p_c over its query heads. Source: docs/numerics.md, "NSA".
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/gated_rows.h"
#include "kernels/pool_chunks.h"
#include "kernels/select_chunks.h"
#include "partition/pool_grid.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// For the rows in `rows`, whose tokens are given by `tokens`: adds the branch to `into`, writes its lse ([rows, H];
// -inf where no chunk is complete) and the chunks that the row takes. Every row depends on its query and on the pooled
// keys alone, and sums run in a fixed order: same bits at any rank count.
//
// pools    whole chunks: rate = chunk_size
// topk     of the selection: at least NsaPolicy::kForced
void attend_pooled(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                   const partition::PoolGrid& pools, const RowsView& queries, std::span<const TokenId> tokens,
                   RowRange rows, const PooledKeys& pooled, const GatedRows& into, TensorView<float, 2> lse,
                   Selection& selection, int threads);

}  // namespace ringmark::kernels
