// The two products of attention for 64 rows and one chunk of 64 keys, issued without waiting.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hopper/attend_tile.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace ringmark::kernels::cuda::hopper {

// Bytes between the 64-channel halves of K, and of V.
inline constexpr int kChannelHalfBytes = kChunkKeys * 128;

// scores = queries keys^T.
template <class Element, int kHeadDim>
__device__ inline void multiply_keys(float (&scores)[32], const std::uint32_t (&queries)[kHeadDim / 16][4],
                                     const std::byte* keys) {
  const std::uint64_t tile = swizzled_descriptor(keys);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const int offset = k / 4 * kChannelHalfBytes + k % 4 * 32;
    Wgmma<Element, 64, false>::register_shared(scores, queries[k], tile + offset / 16, k > 0);
  }
}

// out += weights values. Weights and values are fp16 in every layer (blocks.h).
template <int kHeadDim>
__device__ inline void add_values(float (&out)[kHeadDim / 2], const std::uint32_t (&weights)[4][4],
                                  const std::byte* values) {
  const std::uint64_t tile = swizzled_descriptor(values, kChannelHalfBytes);
#pragma unroll
  for (int k = 0; k < kChunkKeys / 16; ++k) {
    Wgmma<__half, kHeadDim, true>::register_shared(out, weights[k], tile + k * 2048 / 16, true);
  }
}

// Accumulators of a 64 x 64 product as A operands of the next one: the layouts agree pair by pair.
__device__ inline void pack_weights(const float (&weights)[32], std::uint32_t (&operands)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const __half2 both = __floats2half2_rn(weights[8 * k + 2 * pair], weights[8 * k + 2 * pair + 1]);
      operands[k][pair] = reinterpret_cast<const std::uint32_t&>(both);
    }
  }
}

}  // namespace ringmark::kernels::cuda::hopper
