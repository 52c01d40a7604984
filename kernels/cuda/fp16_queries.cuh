// Queries as fp16 operands of scoring, whatever the dtype of the layer: landmarks of two fp16 terms (LandmarkTiles) are
// 64 times as exact as of two bf16 terms, at the same cost. The eight bits of a bf16 fraction fit into fp16; its
// exponents do not, so a row of bf16 is multiplied by a power of two that suits its largest element. What fp16 then
// cannot hold is below 2^-37 of that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {

struct PowerOfTwo {
  float scale;
  float inverse;
};

// Takes numbers up to `largest` to below 2^13; 1 for what is too small, infinite or NaN.
__device__ inline PowerOfTwo fp16_scale(float largest) {
  const std::uint32_t exponent = __float_as_uint(largest) >> 23 & 0xFFu;  // biased by 127
  if (exponent < 13u || exponent == 0xFFu) return {1.0f, 1.0f};
  return {__uint_as_float((266u - exponent) << 23), __uint_as_float((exponent - 12u) << 23)};
}

__device__ inline std::uint32_t scaled_halves(std::uint32_t bf16_pair, float scale) {
  const float2 pair = widen_pair<DType::kBfloat16>(bf16_pair);
  const __half2 halves = __floats2half2_rn(pair.x * scale, pair.y * scale);
  return *reinterpret_cast<const std::uint32_t*>(&halves);
}

// Row `kHalf` (0: upper, 1: lower) of operand A of a 16-bit product, shared by four lanes: bf16 becomes scaled fp16,
// fp16 stays. Returns what products are to be multiplied with. By a whole warp.
template <class Element, int kHalf, int kSteps>
__device__ float to_fp16(std::uint32_t (&queries)[kSteps][4]) {
  if constexpr (std::is_same_v<Element, __half>) return 1.0f;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    const float2 pair = widen_pair<DType::kBfloat16>(queries[i / 2][kHalf + i % 2 * 2]);
    largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  const PowerOfTwo power = fp16_scale(quad_max(largest));
#pragma unroll
  for (int i = 0; i < 2 * kSteps; ++i) {
    std::uint32_t& word = queries[i / 2][kHalf + i % 2 * 2];
    word = scaled_halves(word, power.scale);
  }
  return power.inverse;
}

}  // namespace ringmark::kernels::cuda
