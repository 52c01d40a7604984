// One block, K then V in BlockOrder::kSwizzled, in shared memory, and the two products with it. The image has no bank
// conflicts for ldmatrix: the eight 16-byte columns of a matrix stand in eight different bank groups.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma/instructions.cuh"

namespace ringmark::kernels::cuda::mma {

inline constexpr int kChunk = 64;                // chunk_size of every shape with tensor core kernels
inline constexpr int kHalfBytes = kChunk * 128;  // 64 channels of K or V

template <int kHeadDim>
inline constexpr int kBlockBytes = 2 * kChunk* kHeadDim * 2;

// All threads of the CTA start the copy of a block to `stage`.
template <int kHeadDim, int kThreads>
__device__ inline void load_block(std::uint32_t stage, const std::byte* block) {
  const auto first = static_cast<std::uint32_t>(threadIdx.x) * 16;
#pragma unroll
  for (int i = 0; i < kBlockBytes<kHeadDim> / (kThreads * 16); ++i) {
    copy_async(stage + first + i * kThreads * 16, block + first + i * kThreads * 16);
  }
}

// s = q K^T: s[n] are slots [8 n, 8 n + 8).
template <class Element, int kHeadDim>
__device__ inline void multiply_keys(float (&s)[kChunk / 8][4], const std::uint32_t (&q)[kHeadDim / 16][4],
                                     std::uint32_t keys) {
  // Matrices of one load: 8 slots x channels [0, 8), x channels [8, 16), then the next 8 slots.
  const int lane = lane_id();
  const std::uint32_t row = keys + ((lane / 16) * 8 + lane % 8) * 128;
  const int column = (lane / 8 % 2) ^ (lane % 8);
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const std::uint32_t at = row + (k / 4) * kHalfBytes + ((column ^ (2 * (k % 4))) * 16);
#pragma unroll
    for (int n = 0; n < kChunk / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, at + n * 8 * 128);
      multiply_add<Element>(s[n], q[k], b[0], b[1]);
      multiply_add<Element>(s[n + 1], q[k], b[2], b[3]);
    }
  }
}

// out += p V, p rounded to fp16, as which V stands (blocks.h): out[n] are channels [8 n, 8 n + 8).
template <int kHeadDim>
__device__ inline void multiply_values(float (&out)[kHeadDim / 8][4], const float (&p)[kChunk / 8][4],
                                       std::uint32_t values) {
  // Matrices of one load: 8 slots, then the next 8 slots, x channels [0, 8); both x channels [8, 16).
  const int lane = lane_id();
  const std::uint32_t row = values + ((lane / 8 % 2) * 8 + lane % 8) * 128;
  const int column = (lane / 16) ^ (lane % 8);
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    // The columns of two accumulators are those of one left operand.
    const std::uint32_t a[4] = {pack_halves(p[2 * k][0], p[2 * k][1]), pack_halves(p[2 * k][2], p[2 * k][3]),
                                pack_halves(p[2 * k + 1][0], p[2 * k + 1][1]),
                                pack_halves(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t b[4];
      load_transposed(b, row + k * 16 * 128 + (n / 8) * kHalfBytes + ((column ^ (n % 8)) * 16));
      multiply_add<__half>(out[n], a, b[0], b[1]);
      multiply_add<__half>(out[n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace ringmark::kernels::cuda::mma
