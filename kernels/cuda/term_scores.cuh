// Scores from the two terms of landmarks (LandmarkTiles), as far off as those of step 1: one warp multiplies the
// landmarks of 16 chunks, gathered straight into the operand registers of the matrix units, with the queries of 8 rows.
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

// The queries of eight rows: those of row lane / 4. The channels of a step may be any, as long as both operands agree:
// a lane takes eight that stand together.
template <DType kDType, int kHalves>
struct QueryColumns {
  uint4 columns[kHalves][2];
  float2 factors;  // what products with rows 2 (lane % 4) and the next are multiplied with

  // query   the lane's row: head_dim elements, all at most `largest`
  // factor  of products with the queries as they are
  __device__ QueryColumns(const std::byte* query, float largest, float factor, int lane) {
    const PowerOfTwo power = kDType == DType::kBfloat16 ? fp16_scale(largest) : PowerOfTwo{1.0f, 1.0f};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint4 q = *reinterpret_cast<const uint4*>(query + half * 128 + (4 * block + lane % 4) * 16);
        if constexpr (kDType == DType::kBfloat16) {
          q = {scaled_halves(q.x, power.scale), scaled_halves(q.y, power.scale), scaled_halves(q.z, power.scale),
               scaled_halves(q.w, power.scale)};
        }
        columns[half][block] = q;
      }
    }
    const float own = factor * power.inverse;
    factors = {__shfl_sync(kAllLanes, own, lane % 4 * 8), __shfl_sync(kAllLanes, own, lane % 4 * 8 + 4)};
  }
};

// scores[2 i + j]: of chunk lane / 4 + 8 i, whose terms are upper (i = 0) or lower, and of row 2 (lane % 4) + j.
template <DType kDType, int kHalves>
__device__ void scores_of_terms(const TermRow& upper, const TermRow& lower,
                                const QueryColumns<kDType, kHalves>& queries, float (&scores)[4], int lane) {
#pragma unroll
  for (float& score : scores) score = 0.0f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int column = 4 * block + lane % 4;
      const uint4& q = queries.columns[half][block];
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        const uint4 a = upper.column(term * kHalves + half, column), b = lower.column(term * kHalves + half, column);
        mma::multiply_add<__half>(scores, {a.x, b.x, a.y, b.y}, q.x, q.y);
        mma::multiply_add<__half>(scores, {a.z, b.z, a.w, b.w}, q.z, q.w);
      }
    }
  }
  scores[0] = fmaf(scores[0], queries.factors.x, upper.bias);
  scores[1] = fmaf(scores[1], queries.factors.y, upper.bias);
  scores[2] = fmaf(scores[2], queries.factors.x, lower.bias);
  scores[3] = fmaf(scores[3], queries.factors.y, lower.bias);
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
