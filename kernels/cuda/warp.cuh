// What kernels that work by warps share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ringmark::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// A monotone map from floats to unsigned integers; -0 comes just before +0.
__device__ inline std::uint32_t order_of(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float value_at(std::uint32_t order) {
  return __uint_as_float(order ^ (~static_cast<std::uint32_t>(static_cast<std::int32_t>(order) >> 31) | 0x80000000u));
}

// Over the four lanes that share a row of a tensor core accumulator (a quad); the same bits in each.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
template <class T>
__device__ T quad_sum(T value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// Over the lanes of a warp, in one instruction. Of values without NaN.
__device__ inline float largest_of_warp(float value) { return value_at(__reduce_max_sync(kAllLanes, order_of(value))); }

}  // namespace ringmark::kernels::cuda
