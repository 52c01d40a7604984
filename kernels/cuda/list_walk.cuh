// The merge of the lists of a group, step by step: every lane walks the list of one head, and a table of what the group
// has picked tells which candidates to pass over. All of it in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "kernels/score_chunks.h"

namespace ringmark::kernels::cuda {

inline constexpr std::uint32_t kNothing = 0;  // below the order of any rank

// The chunks that a group has picked and the number of each pick: a hash table with open addressing.
struct PickedChunks {
  static constexpr std::uint32_t kFree = 0xFFFFFFFFu;
  static constexpr int kNumberBits = 6;  // a group picks at most 64; a chunk takes at most 21 bits more

  std::uint32_t* table;  // [slots], kFree to begin with
  std::int32_t slots;    // a power of two, more than there will be picks

  __device__ std::uint32_t wrapped(std::uint32_t slot) const { return slot & static_cast<std::uint32_t>(slots - 1); }
  __device__ std::uint32_t first_slot(std::int32_t chunk) const {
    return wrapped(static_cast<std::uint32_t>(chunk) * 0x9E3779B1u >> 16);
  }

  __device__ void insert(std::int32_t chunk, int number) {
    std::uint32_t slot = first_slot(chunk);
    while (table[slot] != kFree) slot = wrapped(slot + 1);
    table[slot] = static_cast<std::uint32_t>(chunk) << kNumberBits | static_cast<std::uint32_t>(number);
  }
  // The number of the chunk's pick, -1 when it is not picked.
  __device__ int find(std::int32_t chunk) const {
    for (std::uint32_t slot = first_slot(chunk);; slot = wrapped(slot + 1)) {
      const std::uint32_t entry = table[slot];
      if (entry == kFree) return -1;
      if (entry >> kNumberBits == static_cast<std::uint32_t>(chunk)) {
        return static_cast<int>(entry & ((1u << kNumberBits) - 1u));
      }
    }
  }
};

// Unused ones, with chunk -1 and score -inf, come last.
__device__ inline bool comes_after(const Candidate& a, const Candidate& b) {
  return a.score < b.score ||
         (a.score == b.score && static_cast<std::uint32_t>(a.chunk) > static_cast<std::uint32_t>(b.chunk));
}

// Puts the lane's own list in order: of scores, equal ones by chunk. Quick when it is in order already; equal
// approximate scores may stand as they are. False when a score is NaN or infinite.
__device__ inline bool sort_list(Candidate* list, int capacity, bool exact) {
  bool in_order = true;
  float before = list[0].score;
  bool numbers = before == before;
#pragma unroll 4
  for (int i = 1; i < capacity; ++i) {
    const float score = list[i].score;
    in_order = in_order && (exact ? score < before : score <= before);  // no NaN, then
    before = score;
  }
  for (int i = 1; !in_order && i < capacity; ++i) {
    const Candidate candidate = list[i];
    numbers = numbers && candidate.score == candidate.score;
    int place = i;
    for (; place > 0 && comes_after(list[place - 1], candidate); --place) list[place] = list[place - 1];
    list[place] = candidate;
  }
  return numbers && list[0].score < __builtin_huge_valf();
}

struct ListWalk {
  const Candidate* list = nullptr;  // in order
  float* scores = nullptr;          // of the group's picks by this head, as far as the walk finds them
  float normaliser = 0.0f;
  int capacity = 0;
  int at = 0;
  int known = 0;            // how many of `scores`
  std::int32_t chunk = -1;  // of the front; -1 at the end
  float score = 0.0f;
  std::uint32_t order = kNothing;   // of the front's rank
  std::uint32_t least = ~kNothing;  // order of the last pick; all ones: none

  // Reads the front.
  __device__ void look() {
    const Candidate candidate = at < capacity ? list[at] : Candidate{0.0f, -1};
    chunk = candidate.chunk;
    score = candidate.score;
    order = chunk < 0 ? kNothing : order_of(score - normaliser);
  }
  __device__ void keep_score(int number) {
    scores[number] = score;
    ++known;
  }
  // Goes to the next candidate whose chunk is not picked yet. kShared: other heads pick for the group, too.
  template <bool kShared>
  __device__ void advance(const PickedChunks& picked) {
    int number = -1;
    do {
      ++at;
      look();
      if constexpr (kShared) number = chunk < 0 ? -1 : picked.find(chunk);
      if (number >= 0) keep_score(number);
    } while (number >= 0);
  }
};

}  // namespace ringmark::kernels::cuda
