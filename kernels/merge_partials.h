// Merge of two partial attention results over disjoint key sets.
#pragma once

#include "core/tensor.h"

namespace ringmark::kernels {

// into = into (+) other, row by row: lse = logaddexp, out = convex combination. Max-subtracted; exact when either side
// is empty (lse = -inf: its out is ignored, even NaN); two empty sides stay out = 0, lse = -inf. out [rows, heads, d]
// fp32, lse [rows, heads] natural log.
void merge_partials(TensorView<float, 3> into_out, TensorView<float, 2> into_lse, TensorView<const float, 3> other_out,
                    TensorView<const float, 2> other_lse);

}  // namespace ringmark::kernels
