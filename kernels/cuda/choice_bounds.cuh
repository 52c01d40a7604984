// How far off the ranks of step 1 may be, and whether a choice by them stands all the same.
#pragma once

#include "kernels/cuda/settling.cuh"

namespace ringmark::kernels::cuda {

// Rounding of an approximate score and of the exact one together, of |query| |key|. Both are sums whose partial sums
// stay well below that; 16 units cover the truncation of the matrix units at every step.
constexpr float kRounding = 16.0f * 0x1p-24f;
// Of the sum of up to 2^21 exponentials, relative.
constexpr float kSumError = 2e-6f;
// Covers the few roundings of one operation after another on numbers of a given size: bias, scale, rank.
constexpr float kPad = 0x1p-22f;

// Of one head, in units of scores.
struct Bounds {
  float normaliser;
  float score_error;  // of approximate scores, before kPad
  float normaliser_error;
  float cut;   // rank that no unlisted chunk exceeds but by score_error
  bool sound;  // all of them are numbers
  bool exact;  // the scores of the list
};

template <int kGroup>
__device__ Bounds bounds_of(const Settling& s, const Span<kGroup>& span, float square, int lane) {
  const float2 sum = s.lists.sum[span.of_range(s, lane)];
  const float cut = s.lists.cut[span.of_range(s, lane)];
  const int landmark_head = span.head(lane) >> s.landmark_shift;
  const float norms = s.tiles.residual_norm[landmark_head] + kRounding * s.tiles.key_norm[landmark_head];
  Bounds bounds;
  bounds.score_error = 1.001f * s.shape.scale * sqrtf(square) * norms;
  bounds.normaliser = bounds.normaliser_error = 0.0f;
  if constexpr (kGroup > 1) {
    const float lse = sum.y == 0.0f ? -kInfinity : sum.x + logf(sum.y);
    const float window = s.lse_window[span.of_rank(s, lane)];
    const float most = fmaxf(lse, window);
    bounds.normaliser = isinf(most) ? most : most + log1pf(expf(-fabsf(lse - window)));
    // The normaliser moves with lse by its share in it.
    if (lse > -kInfinity) {
      const float lse_error = bounds.score_error + kSumError + kPad * (fabsf(sum.x) + fabsf(lse));
      bounds.normaliser_error = 1.01f * expf(lse - bounds.normaliser) * lse_error;
    }
    bounds.normaliser_error += kPad * (fabsf(bounds.normaliser) + 1.0f);
  }
  bounds.exact = false;
  bounds.cut = cut == -kInfinity ? -kInfinity : cut - bounds.normaliser;
  bounds.sound =
      sum.y == sum.y && cut == cut && bounds.normaliser == bounds.normaliser && bounds.score_error < kInfinity;
  return bounds;
}

// Whether the lane's head leaves no doubt: its picks rank before all that was not picked, however the errors fall.
// Inside one head the normaliser cancels, and a list of exact scores is in the order of the contract.
template <int kGroup>
__device__ bool is_certain(const Settling& s, const Bounds& bounds, const ListWalk& walk, int count) {
  // A rank has the roundings of its score, whose size is at most that of rank and normaliser, and of the subtraction.
  const auto error = [&](float rank, bool exact) {
    return exact ? kPad * fabsf(rank) : kPad * (fabsf(rank) + fabsf(bounds.normaliser)) + bounds.score_error;
  };
  float low = kInfinity, front = -kInfinity, unlisted = bounds.cut;
  if (walk.least != ~kNothing) low = value_at(walk.least) - error(value_at(walk.least), bounds.exact);
  if (walk.order != kNothing) front = value_at(walk.order) + error(value_at(walk.order), bounds.exact);
  if (unlisted != -kInfinity) unlisted += error(unlisted, false);
  float high = fmaxf(front, unlisted);
  bool certain = bounds.sound;
  if (high != -kInfinity) certain = certain && count == s.shape.topk && low > (bounds.exact ? unlisted : high);
  if (low != kInfinity) low -= bounds.normaliser_error;
  high += bounds.normaliser_error;
#pragma unroll
  for (int distance = 1; distance < kGroup; ++distance) {
    const float other = __shfl_xor_sync(kAllLanes, high, distance);
    certain = certain && (other == -kInfinity || low > other);
  }
  return certain;
}

}  // namespace ringmark::kernels::cuda
