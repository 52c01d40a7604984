// Softmax over the scores of one block as multiply_keys leaves them: s[n][0..1] of the lane's upper row, s[n][2..3] of
// its lower one. All exponents are in base 2.
#pragma once

#include "kernels/cuda/mma/instructions.cuh"
#include "kernels/cuda/mma/key_block.cuh"

namespace ringmark::kernels::cuda::mma {

using BlockScores = float[kChunk / 8][4];

// The largest weight of a row is 2^kLift: fp16 then holds weights down to 2^-29 of it in full and to 2^-39 at all.
inline constexpr float kLift = 15.0f;

// Leaves the upper row slots [begin, end[0]) and the lower one [begin, end[1]).
__device__ inline void mask_slots(BlockScores& s, int begin, const int (&end)[2]) {
  const int first = 2 * (lane_id() % 4);
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int slot = first + n * 8 + j % 2;
      if (slot < begin || slot >= end[j / 2]) s[n][j] = -kInfinity;
    }
  }
}

__device__ inline float row_max(const BlockScores& s, int i) {
  float top = -kInfinity;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
  return quad_max(top);
}

// s becomes 2^(factor s - base) in row i; returns the sum of the lane's terms.
__device__ inline float exponentiate(BlockScores& s, int i, float factor, float base) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    s[n][2 * i] = exp2_approximate(fmaf(s[n][2 * i], factor, -base));
    s[n][2 * i + 1] = exp2_approximate(fmaf(s[n][2 * i + 1], factor, -base));
    sum += s[n][2 * i] + s[n][2 * i + 1];
  }
  return sum;
}

// Running softmax of the lane's two rows.
struct OnlineSoftmax {
  float top[2] = {-kInfinity, -kInfinity};  // the largest factor * s so far
  float sum[2] = {0.0f, 0.0f};              // of the lane's own terms, relative to 2^(top - kLift)

  // Takes a block in: s becomes its weights, 2^kLift at the new top; returns in `rescale` what the results so far are
  // to be multiplied with. A row of which the block has no slot keeps its state to the bit, with a factor of exactly 1
  // (0 while the row has seen no slot: all it has is 0).
  __device__ void take(BlockScores& s, float factor, float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float larger = fmaxf(top[i], row_max(s, i) * factor);
      const float base = larger == -kInfinity ? 0.0f : larger;
      rescale[i] = exp2_approximate(top[i] - base);
      top[i] = larger;
      sum[i] = sum[i] * rescale[i] + exponentiate(s, i, factor, base - kLift);
    }
  }
};

}  // namespace ringmark::kernels::cuda::mma
