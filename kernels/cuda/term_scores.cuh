// Scores from the two terms of landmarks (LandmarkTiles), as far off as those of step 1: one warp multiplies the
// landmarks of 16 chunks, gathered straight into the operand registers of the matrix units, with one query.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/fp16_queries.cuh"
#include "kernels/cuda/landmarks.h"
#include "kernels/cuda/mma/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {

// Where a landmark's first term stands, and how far its 16-byte columns are swizzled.
struct TermRow {
  const std::byte* high;
  std::int32_t swizzle;
  float bias;

  template <int kHalves>
  __device__ static TermRow of(const LandmarkTiles& tiles, std::int32_t landmark_head, std::int32_t chunk) {
    constexpr std::int64_t kTileBytes = 2 * kHalves * LandmarkTiles::kTileChunks * 128;
    const std::int64_t tile = std::int64_t{landmark_head} * tiles.tiles + chunk / LandmarkTiles::kTileChunks;
    const std::int32_t slot = chunk % LandmarkTiles::kTileChunks;
    return {tiles.terms + tile * kTileBytes + slot * 128, slot % 8,
            tiles.bias[tile * LandmarkTiles::kTileChunks + slot]};
  }
  __device__ uint4 column(int half, int number) const {
    return *reinterpret_cast<const uint4*>(high + half * LandmarkTiles::kTileChunks * 128 + (number ^ swizzle) * 16);
  }
};

// The scores of two chunks a lane: of row lane / 4 and of row lane / 4 + 8. The channels of a step may be any, as long
// as both operands agree: a lane takes eight that stand together.
//
// query   head_dim elements, all at most `largest`
// factor  what a product is multiplied with
template <DType kDType, int kHalves>
__device__ float2 scores_of_terms(const TermRow& upper, const TermRow& lower, const std::byte* query, float largest,
                                  float factor, int lane) {
  const PowerOfTwo power = kDType == DType::kBfloat16 ? fp16_scale(largest) : PowerOfTwo{1.0f, 1.0f};
  float sum[4] = {};
#pragma unroll 1  // eight loads of a lane at a time: more would take registers that warps need
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int column = 4 * block + lane % 4;
      uint4 q = *reinterpret_cast<const uint4*>(query + half * 128 + column * 16);
      if constexpr (kDType == DType::kBfloat16) {
        q = {scaled_halves(q.x, power.scale), scaled_halves(q.y, power.scale), scaled_halves(q.z, power.scale),
             scaled_halves(q.w, power.scale)};
      }
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        const uint4 a = upper.column(term * kHalves + half, column), b = lower.column(term * kHalves + half, column);
        mma::multiply_add<__half>(sum, {a.x, b.x, a.y, b.y}, q.x, q.y);
        mma::multiply_add<__half>(sum, {a.z, b.z, a.w, b.w}, q.z, q.w);
      }
    }
  }
  return {fmaf(sum[0], factor * power.inverse, upper.bias), fmaf(sum[2], factor * power.inverse, lower.bias)};
}

// The square of the norm of a query of head_dim elements, over the eight lanes that share it; the same in each.
template <DType kDType, int kHalves>
__device__ float square_of_eight(const std::byte* query, int lane) {
  float square = 0.0f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const uint4 words = *reinterpret_cast<const uint4*>(query + half * 128 + lane % 8 * 16);
#pragma unroll
    for (const std::uint32_t word : {words.x, words.y, words.z, words.w}) {
      const float2 two = widen_pair<kDType>(word);
      square = fmaf(two.x, two.x, fmaf(two.y, two.y, square));
    }
  }
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) square += __shfl_xor_sync(kAllLanes, square, distance);
  return square;
}

}  // namespace ringmark::kernels::cuda
