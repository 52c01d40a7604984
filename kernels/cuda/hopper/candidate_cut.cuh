// Which of a row's candidates stay when there are too many. Four neighbouring lanes (a quad) share a row and each hold
// some of its candidates, in registers, -inf where there is none; the eight rows of a warp are cut together. The order
// is score descending, then chunk descending.
#pragma once

#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::hopper {

constexpr float kNoScore = -__builtin_huge_valf();
constexpr int kNoChunk = 0x7FFFFFFF;

// Those that stay: above `score`, or equal to it and of a chunk after `chunk`.
struct Cut {
  float score;
  int chunk;

  __device__ bool keeps(float other_score, int other_chunk) const {
    return other_score > score || (other_score == score && other_chunk > chunk);
  }
};

template <int kCount>
__device__ int quad_count_above(const float (&scores)[kCount], float bound) {
  int counts[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kCount; ++i) counts[i % 4] += scores[i] > bound;
  return quad_sum(counts[0] + counts[1] + counts[2] + counts[3]);
}

// A bound on the chunks of the candidates that score exactly `score`: `wanted` of them, at least one, lie above it.
// score_of(i) and chunk_of(i), i < count, are the lane's candidates. Rows with open = false only take part. Rare: the
// candidates are read again and again, not held in registers.
template <class ScoreOf, class ChunkOf>
__device__ int cut_of_equals(int count, const ScoreOf& score_of, const ChunkOf& chunk_of, float score, int wanted,
                             bool open) {
  int low = -1;  // at least `wanted` lie above it, fewer above low + span
  unsigned span = 1u << 31;
  while (__any_sync(kAllLanes, open && span > 1)) {
    const int middle = low + static_cast<int>(span / 2);
    int above = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (score_of(i) == score) above += chunk_of(i) > middle;
    }
    if (quad_sum(above) >= wanted) low = middle;
    span -= span / 2;
  }
  return low;
}

// What is known of a row's candidates before it is cut; the same in all lanes of its quad.
struct Spread {
  int count = 0;
  float smallest;
  float largest;
  float mean_excess;  // of the score over the smallest one

  template <int kCount>
  __device__ explicit Spread(const float (&scores)[kCount]) {
    const float infinity = -kNoScore;
    smallest = infinity;
    largest = kNoScore;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool used = scores[i] > kNoScore;
      count += used;
      sum += used ? scores[i] : 0.0f;
      largest = fmaxf(largest, scores[i]);
      smallest = fminf(smallest, used ? scores[i] : infinity);
    }
    count = quad_sum(count);
    largest = quad_max(largest) + 0.0f;  // -0 becomes 0
    smallest = 0.0f - quad_max(-smallest);
    mean_excess = quad_sum(sum) / static_cast<float>(count) - smallest;
  }
};

// Leaves every row with at most `most` candidates and at least `least` of those it had (all when it had fewer), the
// best ones. A row that has no more than `most` keeps them all, its cut is below everything; otherwise at least `least`
// stay, so that later candidates need not be looked at unless they are above cut.score. 0 < least <= most. score_of(i)
// gives scores[i] again.
template <int kCount, class ScoreOf, class ChunkOf>
__device__ Cut cut_candidates(const float (&scores)[kCount], const ScoreOf& score_of, const ChunkOf& chunk_of,
                              int least, int most) {
  const Spread spread(scores);
  const bool cuts = spread.count > most;
  bool open = cuts, equals = false;
  // More than `most` candidates lie above low, fewer than `least` above high. The tail of a distribution looks
  // exponential: the first guesses say so, then comes bisection.
  std::uint32_t low = order_of(spread.smallest) - 1, high = order_of(spread.largest);
  float guess = spread.smallest;
  int above = spread.count;
  const float target = 0.5f * static_cast<float>(least + most);
  for (int round = 0; __any_sync(kAllLanes, open); ++round) {
    if (open && high - low == 1) {
      open = false;
      equals = true;
    }
    std::uint32_t middle = low + (high - low) / 2;
    if (round < 3) {
      guess += spread.mean_excess * __logf(fmaxf(static_cast<float>(above), 1.0f) / target);
      middle = min(max(order_of(guess), low + 1), high - 1);
    }
    guess = value_at(middle);
    above = quad_count_above(scores, guess);
    if (!open) continue;
    if (above < least) {
      high = middle;
    } else {
      low = middle;
      open = above > most;
    }
  }
  if (!cuts) low = high = order_of(kNoScore);
  Cut cut{value_at(equals ? high : low), kNoChunk};
  if (__any_sync(kAllLanes, equals)) {
    const int wanted = least - quad_count_above(scores, cut.score);
    const int chunk = cut_of_equals(kCount, score_of, chunk_of, cut.score, wanted, equals);
    if (equals) cut.chunk = chunk;
  }
  return cut;
}

}  // namespace ringmark::kernels::cuda::hopper
