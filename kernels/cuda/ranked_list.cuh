// The topk best chunks of a row in contract order, kept by one warp that walks the chunks in ascending order. The list
// stands in global memory (it may hold thousands); chunks that pass its gate wait in shared memory until a warp's worth
// of them is sorted and merged in.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/score_chunks.h"

namespace ringmark::kernels::cuda {

// As kernels::better.
__device__ inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.chunk < b.chunk);
}

__device__ inline Candidate from_lane(const Candidate& own, int lane) {
  return {__shfl_sync(kAllLanes, own.score, lane), __shfl_sync(kAllLanes, own.chunk, lane)};
}

// The lower lane of two that are `distance` apart keeps the candidate that ranks before the other, or the upper one.
__device__ inline void compare_lanes(Candidate& own, int distance, bool lower_is_better, int lane) {
  const Candidate other = from_lane(own, lane ^ distance);
  const bool takes_better = ((lane & distance) == 0) == lower_is_better;
  if (ranks_before(other, own) == takes_better) own = other;
}

// Ranks a sequence of 32 that rises and then falls, or the other way round: lane i receives the candidate of rank i.
__device__ inline void rank_bitonic(Candidate& own, int lane) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) compare_lanes(own, distance, true, lane);
}

__device__ inline void rank_lanes(Candidate& own, int lane) {
#pragma unroll
  for (int run = 2; run < 32; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) compare_lanes(own, distance, (lane & run) == 0, lane);
  }
  rank_bitonic(own, lane);
}

struct RankedList {
  static constexpr int kWaiting = 32;
  static constexpr float kOpenGate = __builtin_huge_valf();  // of an empty list

  Candidate* best;     // [topk], global memory
  Candidate* waiting;  // [kWaiting], shared memory
  std::int32_t topk;
  std::int32_t held;   // of `best`
  std::int32_t waits;  // of `waiting`
  float gate;          // once topk are held: the least score of them

  // Chunks come in ascending order: one that equals the gate ranks behind it. NaN never passes.
  __device__ bool passes(float score) const { return held < topk ? score == score : score > gate; }

  // scores: of 32 kCount consecutive chunks from `first` on, in shared memory. Called by whole warps.
  template <int kCount>
  __device__ void offer(const float* scores, std::int32_t first, int lane) {
    unsigned passing[kCount];
    int all = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      passing[j] = __ballot_sync(kAllLanes, passes(scores[lane + 32 * j]));
      all += __popc(passing[j]);
    }
    if (waits + all <= kWaiting) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) put(passing[j], scores[lane + 32 * j], first + 32 * j, lane);
    } else {
#pragma unroll 1
      for (int j = 0; j < kCount; ++j) {
        const float score = scores[lane + 32 * j];
        unsigned some = __ballot_sync(kAllLanes, passes(score));
        if (waits + __popc(some) > kWaiting) {
          merge(lane);
          some = __ballot_sync(kAllLanes, passes(score));
        }
        put(some, score, first + 32 * j, lane);
      }
    }
    __syncwarp();
  }

  // Merges the waiting ones into the list: of every block of 32 and what is carried, the better half stays and the
  // other is carried on.
  __device__ void merge(int lane) {
    if (waits == 0) return;
    __syncwarp();  // all that waits has been written
    const Candidate worst{-__builtin_huge_valf(), 0x7FFFFFFF};
    Candidate carried = lane < waits ? waiting[lane] : worst;
    rank_lanes(carried, lane);
    const std::int32_t before = held;
    held = min(topk, held + waits);
    waits = 0;
    float least = 0.0f;
    for (std::int32_t first = 0; first < held; first += 32) {
      const std::int32_t slot = first + lane;
      Candidate own = slot < before ? best[slot] : worst;
      const Candidate other = from_lane(carried, 31 - lane);
      const bool stays = ranks_before(own, other);
      if (!__all_sync(kAllLanes, stays)) {
        carried = stays ? other : own;
        own = stays ? own : other;
        rank_bitonic(own, lane);
        rank_bitonic(carried, lane);
        if (slot < held) best[slot] = own;
      }
      least = own.score;
    }
    if (held == topk) gate = __shfl_sync(kAllLanes, least, (topk - 1) % 32);
    __syncwarp();  // the list is complete
  }

  // Fills the slots left over.
  __device__ void finish(int lane) {
    merge(lane);
    for (int slot = held + lane; slot < topk; slot += 32) best[slot] = {0.0f, -1};
  }

 private:
  // The lanes of `chosen` add their candidates to those that wait.
  __device__ void put(unsigned chosen, float score, std::int32_t first, int lane) {
    if ((chosen >> lane & 1u) != 0) waiting[waits + __popc(chosen & ((1u << lane) - 1u))] = {score, first + lane};
    waits += __popc(chosen);
  }
};

}  // namespace ringmark::kernels::cuda
