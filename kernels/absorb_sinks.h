// Sink logits: a term of every softmax row that has a logit and no value.
#pragma once

#include <span>

#include "core/tensor.h"

namespace ringmark::kernels {

// out [rows, H, d] fp32 and lse [rows, H], natural log, of a finished softmax; sink_logits [H], finite or -inf, or
// empty:
//     lse' = logaddexp(lse, s_h),  out' = exp(lse - lse') out
// the softmax with one more logit, s_h, whose value is 0. Not idempotent: the last step on a row. A row without keys
// keeps out = 0 and gets lse = s_h; a logit of -inf changes nothing. Source: docs/numerics.md, "Logits".
void absorb_sinks(std::span<const float> sink_logits, TensorView<float, 3> out, TensorView<float, 2> lse, int threads);

}  // namespace ringmark::kernels
