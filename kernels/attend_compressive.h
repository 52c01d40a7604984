// Attention to a compressive memory: pooled keys of older groups and exact keys in one softmax.
//     out = sum_j softmax_j(a q_i . k_j) v_j     j over the pooled rows that i sees, then over its exact keys
// with m0 = max(0, floor(o/L) L - M) for a query at position o of its document:
//     pooled  groups g of c slots with (g+1) c <= m0 and g >= m0/c - C
//     exact   the keys of [m0, o]
// Source: docs/numerics.md, "Compressive memory".
#pragma once

#include <cstdint>
#include <span>

#include "core/compressive_policy.h"
#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/pool_chunks.h"
#include "partition/pool_grid.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// For the rows in `rows`, whose exact keys must be in `blocks`: out [rows, H, d], lse [rows, H] natural log. `grid` is
// that of policy.exact_policy(), `pools` that of its rate. A row walks the pooled rows and then its chunks in ascending
// order: its bits depend on nothing else. All logits follow the cap of the problem; its sink logits are absorb_sinks'.
void attend_compressive(const AttentionProblem& problem, const CompressivePolicy& policy,
                        const partition::SequenceGrid& grid, const partition::PoolGrid& pools, const RowsView& queries,
                        std::span<const TokenId> tokens, RowRange rows, const BlockTable& blocks,
                        const PooledKeys& pooled, TensorView<float, 3> out, TensorView<float, 2> lse, int threads);

}  // namespace ringmark::kernels
