// The candidates of the 16 rows of a warp: for every row a list in shared memory that takes what passes the row's gate
// and, when it is full, is cut back to the best of it, which raises the gate. The gate never rises above the score of
// the last place wanted, so the best are always listed, whatever the order in which they come.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma/instructions.cuh"
#include "kernels/score_chunks.h"

namespace ringmark::kernels::cuda::mma {

// Floats as integers of the same order; -0 counts as 0. No NaN.
__device__ inline std::uint32_t ordered_bits(float score) {
  const std::uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A candidate as one number, larger for what kernels::better puts first; 0 is no candidate.
__device__ inline std::uint64_t candidate_key(float score, int chunk) {
  return std::uint64_t{ordered_bits(score)} << 32 | ~static_cast<std::uint32_t>(chunk);
}

// The score of a key, or a number that lies between the scores of two keys when the key does.
__device__ inline float key_score(std::uint64_t key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered);
}
__device__ inline Candidate key_candidate(std::uint64_t key) {
  return {key_score(key), static_cast<std::int32_t>(~static_cast<std::uint32_t>(key))};
}

// How lists hold a candidate: as it comes, the bits of the score above the chunk.
__device__ inline std::uint64_t list_entry(float score, int chunk) {
  return std::uint64_t{__float_as_uint(score)} << 32 | static_cast<std::uint32_t>(chunk);
}
__device__ inline std::uint64_t entry_key(std::uint64_t entry) {
  return candidate_key(__uint_as_float(static_cast<std::uint32_t>(entry >> 32)), static_cast<int>(entry));
}

// Keys dealt to the lanes of a warp, unused ones 0; no two used ones are equal.
template <int kKeys>
struct WarpKeys {
  static constexpr int kHeld = kKeys / 32;
  std::uint64_t held[kHeld];

  // Of a list in shared memory that all lanes may read.
  __device__ WarpKeys(const std::uint64_t* list, int count) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int n = i * 32 + lane_id();
      held[i] = n < count ? entry_key(list[n]) : 0;
    }
  }

  __device__ int count_from(std::uint64_t least) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) count += __popc(__ballot_sync(kAllLanes, held[i] >= least));
    return count;
  }

  // A number that at least `wanted` and at most `most` keys reach, 0 < wanted <= most < the number of keys; `reached`
  // becomes how many. Bisection between the smallest and the largest score: halfway between two scores as long as that
  // may help, then halfway between two keys, which ends whatever the scores are.
  __device__ std::uint64_t threshold(int wanted, int most, int& reached) const {
    constexpr int kGuesses = 12;
    std::uint64_t low, high;  // more than `most` keys reach low, fewer than `wanted` reach high
    find_bounds(low, high);
    for (int probe = 0;; ++probe) {
      std::uint64_t middle = low + (high - low) / 2;
      if (probe < kGuesses) {
        const float score = 0.5f * key_score(low) + 0.5f * key_score(high);
        const std::uint64_t guess = std::uint64_t{ordered_bits(score)} << 32;
        if (low < guess && guess < high) middle = guess;
      }
      reached = count_from(middle);
      if (reached >= wanted && reached <= most) return middle;
      if (reached > most) {
        low = middle;
      } else {
        high = middle;
      }
    }
  }

  // Calls place(rank, key) for every key that reaches `least`: ranks 0, 1, ... in some order.
  template <class Place>
  __device__ void each_from(std::uint64_t least, const Place& place) const {
    int before = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const unsigned lanes = __ballot_sync(kAllLanes, held[i] >= least);
      if (held[i] >= least) place(before + __popc(lanes & ((1u << lane_id()) - 1)), held[i]);
      before += __popc(lanes);
    }
  }

  // Every key is at or above `low` and below `high`.
  __device__ void find_bounds(std::uint64_t& low, std::uint64_t& high) const {
    std::uint32_t smallest = 0xFFFFFFFFu, largest = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const auto score = static_cast<std::uint32_t>(held[i] >> 32);
      largest = max(largest, score);
      if (score != 0) smallest = min(smallest, score);
    }
    low = std::uint64_t{__reduce_min_sync(kAllLanes, smallest)} << 32;
    high = (std::uint64_t{__reduce_max_sync(kAllLanes, largest)} + 1) << 32;
  }

  // The largest key below `bound`; 0 when there is none.
  __device__ std::uint64_t largest_below(std::uint64_t bound) const {
    std::uint64_t largest = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (held[i] < bound && held[i] > largest) largest = held[i];
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      const std::uint64_t theirs = __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(largest), other);
      if (theirs > largest) largest = theirs;
    }
    return largest;
  }
};

// A lane's view of the lists of its two rows; the four lanes of a row agree.
template <int kLength>
class RowLists {
 public:
  // lists: [16][kLength] of the warp. The best `kept` candidates are wanted, kept + 32 <= kLength.
  __device__ RowLists(std::uint64_t* lists, int kept) : lists_(lists), kept_(kept) {}

  // Scores of 32 chunks, as four accumulators; -inf and NaN are no candidates.
  __device__ void offer(const float (&scores)[4][4], int first_chunk) {
    Passed passed(scores, gate_);
    if (!__any_sync(kAllLanes, passed.any())) return;
    passed.count();
    if (__any_sync(kAllLanes, max(count_[0] + passed.of_row(0), count_[1] + passed.of_row(1)) > kLength)) {
      make_room(0, passed.of_row(0));
      make_room(1, passed.of_row(1));
      passed = Passed(scores, gate_);
      passed.count();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint64_t* place = lists_ + (i * 8 + lane_id() / 4) * kLength + count_[i] + passed.before_lane(i);
#pragma unroll
      for (int bit = 0; bit < 8; ++bit) {
        if (!passed.has(i, bit)) continue;
        const int column = bit / 2 * 8 + bit % 2;
        *place++ = list_entry(scores[bit / 2][2 * i + bit % 2], first_chunk + column + 2 * (lane_id() % 4));
      }
      count_[i] += passed.of_row(i);
    }
  }

  // Takes row r of the warp's 16 out; all lanes of the warp get its keys.
  __device__ WarpKeys<kLength> keys(int r, int& count) const {
    count = __shfl_sync(kAllLanes, r < 8 ? count_[0] : count_[1], r % 8 * 4);
    __syncwarp();
    return WarpKeys<kLength>(lists_ + r * kLength, count);
  }

 private:
  static constexpr int kSlack = 8;  // a cut may leave so many more: it is found sooner

  // Which of a lane's scores pass the gates, 8 of each row, and how many do in the row. Both rows in one word, the
  // lower one's number above bit 16.
  struct Passed {
    unsigned bits = 0;
    unsigned own = 0;
    unsigned through = 0;  // of the row's lanes up to this one
    unsigned all = 0;

    __device__ Passed(const float (&scores)[4][4], const float (&gate)[2]) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (scores[n][j] >= gate[j / 2]) bits |= 1u << (j / 2 * 16 + 2 * n + j % 2);
        }
      }
    }
    __device__ bool any() const { return bits != 0; }
    __device__ bool has(int i, int bit) const { return (bits >> (16 * i + bit) & 1) != 0; }
    __device__ void count() {
      own = through = static_cast<unsigned>(__popc(bits & 0xFFFFu) | __popc(bits >> 16) << 16);
      const unsigned one = __shfl_up_sync(kAllLanes, through, 1, 4);
      if (lane_id() % 4 >= 1) through += one;
      const unsigned two = __shfl_up_sync(kAllLanes, through, 2, 4);
      if (lane_id() % 4 >= 2) through += two;
      all = __shfl_sync(kAllLanes, through, 3, 4);
    }
    __device__ int of_row(int i) const { return static_cast<int>(all >> (16 * i) & 0xFFFFu); }
    __device__ int before_lane(int i) const { return static_cast<int>((through - own) >> (16 * i) & 0xFFFFu); }
  };

  // Cuts the lists of those rows back that cannot take `more` candidates.
  __device__ void make_room(int i, int more) {
    unsigned full = __ballot_sync(kAllLanes, count_[i] + more > kLength) & 0x11111111u;
    for (; full != 0; full &= full - 1) {
      const int lane = __ffs(static_cast<int>(full)) - 1;
      std::uint64_t* list = lists_ + (i * 8 + lane / 4) * kLength;
      __syncwarp();
      const WarpKeys<kLength> all(list, __shfl_sync(kAllLanes, count_[i], lane));
      int left;
      const std::uint64_t least = all.threshold(kept_, min(kept_ + kSlack, kLength - 32), left);
      __syncwarp();
      all.each_from(least, [list](int rank, std::uint64_t key) {
        const Candidate candidate = key_candidate(key);
        list[rank] = list_entry(candidate.score, candidate.chunk);
      });
      if (lane_id() / 4 == lane / 4) {
        count_[i] = left;
        gate_[i] = key_score(least);
      }
    }
  }

  std::uint64_t* lists_;
  int kept_;
  int count_[2] = {0, 0};
  float gate_[2] = {-__FLT_MAX__, -__FLT_MAX__};  // below all but -inf
};

}  // namespace ringmark::kernels::cuda::mma
