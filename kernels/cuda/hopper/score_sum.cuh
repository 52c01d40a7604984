// The lse of the scores of a row while they stream by, in units of log2. Every lane adds up its own columns, as they
// are: no maximum is needed as long as the sum stays among safe numbers. When it does not, the lane goes on with a
// reference of its own. The four lanes of a row meet at the end, in fixed order: the result depends on the row's scores
// and on nothing else.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/log_sum.h"

namespace ringmark::kernels::cuda::hopper {

constexpr float kInfinite = __builtin_huge_valf();

// log2 of the sum is reference + log2(sum).
class RowSum {
 public:
  // Adds terms 2^score relative to reference 0. False, and nothing added, when they need more care: a reference, or a
  // term that counts has become 0, or is NaN or too large.
  __device__ bool add(float terms) {
    const float sum = sum_ + terms;
    const bool safe = sum > 0x1p-80f && sum < 0x1p100f && reference_ == 0.0f;
    if (safe) sum_ = sum;
    return safe;
  }

  // Adds 2^scores[4 j + kFirst + e], whatever they are. NaN and -inf add nothing; what is too large for any reference
  // makes the sum infinite.
  template <int kFirst, int kCount>
  __device__ void add_any(const float (&scores)[kCount]) {
    float top = -kInfinite;
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) top = fmaxf(top, scores[n / 2 * 4 + kFirst + n % 2]);
    if (!(top > -kInfinite)) return;
    top = fminf(fmaxf(top, -kLargest), kLargest);
    const float reference = sum_ > 0.0f ? fmaxf(top, reference_) : top;
    sum_ = sum_ > 0.0f ? sum_ * exp2_approximate(reference_ - reference) : 0.0f;
    reference_ = reference;
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) {
      const float score = scores[n / 2 * 4 + kFirst + n % 2];
      if (score == score) sum_ += exp2_approximate(score - reference_);
    }
  }

  // {m, l} of the quad's row: its natural lse is m + ln(l).
  __device__ float2 of_quad() const {
    const bool empty = !(sum_ > 0.0f);
    const float top = quad_max(empty ? -kInfinite : reference_);
    const float sum = quad_sum(empty ? 0.0f : sum_ * exp2_approximate(reference_ - top));
    if (sum == 0.0f) return make_float2(-kInfinite, 0.0f);
    if (!(sum < kInfinite)) return make_float2(LogSum::kLargestScore, 1.0f);
    return make_float2(top * kLn2, sum);
  }

 private:
  static constexpr float kLargest = LogSum::kLargestScore * kLog2E;

  float reference_ = 0.0f;
  float sum_ = 0.0f;
};

}  // namespace ringmark::kernels::cuda::hopper
