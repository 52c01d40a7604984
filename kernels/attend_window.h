// Exact attention over the window and the sinks of every query.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// queries  [rows, H, d]; tokens [rows] their ids
// rows     the half-open range of rows to do; their window and sink blocks must be in `blocks`
// out      [rows, H, d] fp32 and lse [rows, H] natural log, written for the range only.
// sink_queries  null, or [rows, H, d]: what sinks below the window are attended with instead of `queries`
// Logits follow the problem's cap and ALiBi; its sink logits are absorb_sinks' (kernels/absorb_sinks.h).
// A row with no visible key gets out = 0, lse = -inf. Keys are walked in ascending order, so the result does not depend
// on the range, the layout or the rank count. With window >= tokens this is exact causal attention.
void attend_window(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                   std::span<const TokenId> tokens, RowRange rows, const BlockTable& blocks, TensorView<float, 3> out,
                   TensorView<float, 2> lse, int threads, const RowsView* sink_queries = nullptr);

}  // namespace ringmark::kernels
