// The inner loops of the backward kernels, compiled once an instruction set. Matrices here are [keys][kPanelWidth]: a
// column is one (query, head), so that everything but the products runs down the columns. What a column gets depends on
// the column and the keys alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/attend_tile.h"

namespace ringmark::kernels::cpu {

struct GradientKernels {
  // c[r][0, 32) += rows[r] . columns of a panel [depth][32], as one chain of fused multiply-adds from the old value.
  void (*multiply_add)(const float* const* rows, std::int64_t count, std::int64_t depth, const float* panel, float* c,
                       std::int64_t c_stride);
  // A column sees the first `visible` keys: scores become p = e^(score - lse), products (g . v) become
  // p (product - delta); both 0 for keys that it does not see.
  void (*differentiate_window)(std::int64_t keys, const float* visible, const float* lse, const float* delta,
                               float* scores, float* products);
  // A column sees all keys: scores become p = weight * softmax, products become p (product - delta) with delta, which
  // is returned, the mean of the products under the softmax.
  void (*differentiate_chosen)(std::int64_t keys, const float* weight, float* scores, float* products, float* delta);
  // rows[column][key] = scale * matrix[key][column].
  void (*transpose)(std::int64_t keys, float scale, const float* matrix, float* rows, std::int64_t row_stride);
};

extern const GradientKernels kGradientKernelsAvx2;
extern const GradientKernels kGradientKernelsAvx512;

// Those of active_isa().
const GradientKernels& gradient_kernels();

}  // namespace ringmark::kernels::cpu
