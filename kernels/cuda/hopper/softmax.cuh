// Softmax of score accumulators in registers. A thread holds two rows (half e of the accumulators is row e); the four
// threads of a quad share them. Scores are raw products; `log2_scale` = scale * log2(e) > 0 takes them to base 2.
#pragma once

#include <cstdint>

#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::hopper {

// Below any score, yet finite: differences with it are no NaN.
inline constexpr float kScoreFloor = -1e30f;
// The largest weight of a row is 2^kLift: fp16 then holds weights down to 2^-29 of it in full and to 2^-39 at all.
inline constexpr float kLift = 15.0f;

// Hides the keys of row e outside [begin, end[e]).
__device__ inline void hide_keys(float (&scores)[32], int begin, const int (&end)[2]) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int key = first + i / 4 * 8 + i % 2;
    if (key < begin || key >= end[i / 2 % 2]) scores[i] = -INFINITY;
  }
}

// The landmark slot of a full chunk.
__device__ inline void hide_last_key(float (&scores)[32]) {
  if (threadIdx.x % 4 == 3) scores[29] = scores[31] = -INFINITY;
}

// Largest score of row e in this thread, at least kScoreFloor.
__device__ inline float row_max(const float (&scores)[32], int e) {
  float top[2] = {kScoreFloor, kScoreFloor};
#pragma unroll
  for (int i = 0; i < 16; ++i) top[i % 2] = fmaxf(top[i % 2], scores[i / 2 * 4 + e * 2 + i % 2]);
  return fmaxf(top[0], top[1]);
}

// Row e becomes 2^(score * log2_scale - top); returns the sum in this thread.
__device__ inline float exponentiate_row(float (&scores)[32], int e, float log2_scale, float top) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& score = scores[i / 2 * 4 + e * 2 + i % 2];
    score = exp2_approximate(fmaf(score, log2_scale, -top));
    sum[i % 2] += score;
  }
  return sum[0] + sum[1];
}

// Softmax over keys that come chunk by chunk, weights relative to 2^-kLift of a row's running maximum: the largest
// weight is a power of two, so a key that dominates its row comes out as it is. Whether a row rescales depends on the
// row alone, so its result does not depend on the tile.
class OnlineSoftmax {
 public:
  __device__ explicit OnlineSoftmax(float log2_scale) : log2_scale_(log2_scale) {}

  // Scores become weights relative to the current subtrahend.
  __device__ void add_chunk(float (&scores)[32]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float subtrahend = fmaxf(top_[e], quad_max(row_max(scores, e)) * log2_scale_ - kLift);
      factor_[e] = exp2_approximate(top_[e] - subtrahend);
      top_[e] = subtrahend;
      sum_[e] = sum_[e] * factor_[e] + exponentiate_row(scores, e, log2_scale_, subtrahend);
    }
  }

  // Whether a row of this warp must rescale, or has NaN.
  __device__ bool rescales() const {
    const bool settled = factor_[0] == 1.0f && factor_[1] == 1.0f && sum_[0] >= 0.0f && sum_[1] >= 0.0f;
    return __any_sync(kAllLanes, !settled);
  }
  // Output accumulated before the last chunk, made relative to its subtrahend.
  template <int kCount>
  __device__ void rescale(float (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] *= factor_[i / 2 % 2];
  }

  // Sums of the rows, once all chunks are in.
  __device__ void finish() {
    for (int e = 0; e < 2; ++e) sum_[e] = quad_sum(sum_[e]);
  }
  // A row without a key has sum 0.
  __device__ float normaliser(int e) const { return sum_[e] == 0.0f ? 0.0f : 1.0f / sum_[e]; }
  __device__ float lse(int e) const { return sum_[e] == 0.0f ? -INFINITY : top_[e] * (1.0f / kLog2E) + logf(sum_[e]); }

 private:
  float log2_scale_;
  float top_[2] = {kScoreFloor, kScoreFloor};  // subtrahends, base 2
  float sum_[2] = {0.0f, 0.0f};                // of this thread's keys
  float factor_[2] = {1.0f, 1.0f};             // of the last chunk
};

// Softmax inside one chunk, times a weight a row and 2^kLift; rows of weight 0 come out as 0.
class ChunkSoftmax {
 public:
  __device__ void exponentiate(float (&scores)[32], float log2_scale) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float top = quad_max(row_max(scores, e)) * log2_scale;
      sum_[e] = quad_sum(exponentiate_row(scores, e, log2_scale, top));
    }
  }
  // In place of it when all weights of this warp are 0.
  __device__ void skip() { sum_[0] = sum_[1] = 1.0f; }

  // Whether a row of this warp has no key, or NaN.
  __device__ bool unusual() const { return __any_sync(kAllLanes, !(sum_[0] > 0.0f && sum_[1] > 0.0f)); }

  __device__ void weigh(float (&scores)[32], const float (&weight)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float factor = weight[e] == 0.0f ? 0.0f : __fdividef(weight[e] * 0x1p15f, sum_[e]);
#pragma unroll
      for (int i = 0; i < 16; ++i) scores[i / 2 * 4 + e * 2 + i % 2] *= factor;
    }
  }
  __device__ float sum(int e) const { return sum_[e]; }

 private:
  float sum_[2];
};

}  // namespace ringmark::kernels::cuda::hopper
