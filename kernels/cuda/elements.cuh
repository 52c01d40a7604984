// Widening of stored elements to fp32 on the device: exact, as core/dtype.h.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ringmark::kernels::cuda {

// Two 16-bit elements that stand in one word, the first one in its low half.
template <DType kDType>
__device__ inline float2 widen_pair(std::uint32_t word) {
  static_assert(kDType != DType::kFloat32);
  if constexpr (kDType == DType::kBfloat16) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}

// Element `index` of an array.
template <DType kDType>
__device__ inline float element(const std::byte* data, std::int64_t index) {
  if constexpr (kDType == DType::kFloat32) {
    return reinterpret_cast<const float*>(data)[index];
  } else if constexpr (kDType == DType::kBfloat16) {
    return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(data)[index]} << 16);
  } else {
    return __half2float(reinterpret_cast<const __half*>(data)[index]);
  }
}

__device__ inline float element(const std::byte* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return element<DType::kFloat32>(data, index);
    case DType::kBfloat16: return element<DType::kBfloat16>(data, index);
    case DType::kFloat16: return element<DType::kFloat16>(data, index);
  }
  return 0.0f;
}

}  // namespace ringmark::kernels::cuda
