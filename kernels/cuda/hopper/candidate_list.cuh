// The best candidates of the rows of a warp while chunks stream by, newest first.
//
// A warp has 16 rows, laid out as the accumulators of wgmma: a lane holds scores of rows lane / 4 ("half" 0) and
// lane / 4 + 8 (half 1), the four lanes of a quad share them. A row has a gate: what is not above it cannot be among
// the best. Pairs of neighbouring chunks, one of which is above, are pushed to the next waiting place of the lane and
// half, in shared memory, without a word to other lanes. When places run out in any lane, the waiting candidates of all
// rows join the kept ones, the best stay, and the gates rise.
//
// What is kept at the end is exactly the best, whenever the joins happen.
#pragma once

#include "kernels/cuda/hopper/candidate_cut.cuh"
#include "kernels/cuda/hopper/shared_words.cuh"
#include "kernels/score_chunks.h"

namespace ringmark::kernels::cuda::hopper {

// Memory of a warp: lines of kept scores, a word a lane, and waiting places, a pair of scores and a mark a lane. The
// chunks of kept candidates stand, a word each, where the list will be written in the end.
//     kKept     kept candidates of a lane and half
//     kWaiting  waiting places of a lane and half; the last one only takes what finds no other, and when the one before
//               it is in use, the lane counts as full
template <int kKept_, int kWaiting_>
struct ListShape {
  static constexpr int kKept = kKept_;
  static constexpr int kWaiting = kWaiting_;
  static constexpr int kLine = 128;
  static constexpr int kPairs = 256;
  static constexpr int kPlace = kPairs + 64;
  static constexpr int kKeptOfRow = 4 * kKept;
  static constexpr int kWaitingOffset = 2 * kKept * kLine;
  static constexpr int kBytes = kWaitingOffset + 2 * kWaiting * kPlace;
};

template <class Shape>
class WarpLists {
 public:
  static constexpr int kKept = Shape::kKept;
  static constexpr int kWaiting = Shape::kWaiting;
  static constexpr int kMostWaiting = kWaiting - 2;
  static constexpr int kCandidates = kKept + 2 * kMostWaiting;
  static constexpr int kLine = Shape::kLine;
  static constexpr int kPlace = Shape::kPlace;

  // lines: shared memory of the warp. wanted: how many of the best must be found.
  __device__ WarpLists(std::uint32_t lines, int lane, int wanted)
      : lines_(static_cast<int>(lines) + lane * 4),
        lane_(lane),
        least_(wanted),
        most_(min(Shape::kKeptOfRow, wanted + 3 + wanted / 4)) {}

  // Begins new rows; one that is not open takes nothing. No chunk from `end` on will come.
  __device__ void start(bool open0, bool open1, int end) {
    const float nan = __int_as_float(0x7FFFFFFF);  // nothing is above it
    gate0_ = open0 ? kNoScore : nan;
    gate1_ = open1 ? kNoScore : nan;
    for (int i = 0; i < 2 * kKept; ++i) store_float(lines_ + i * kLine, kNoScore);
    clear_waiting(end);
  }

  __device__ float gate(int half) const { return half == 0 ? gate0_ : gate1_; }

  // Takes the scores of a step, of which `hits` says where gates are passed: bit j when some lane's scores[4 j ..] may
  // be above. scores[4 j + 2 half + e] belongs to chunk first_chunk + 8 j + 2 (lane mod 4) + e; NaN and -inf are none.
  // False when some lane of the warp had not enough places, or the marks do not reach as far: then nothing was taken.
  template <int kCount>
  __device__ bool take(const float (&scores)[kCount], int first_chunk, unsigned hits) {
    const int before0 = next0_, before1 = next1_;
    const int mark = mark_of(first_chunk);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      if ((hits >> j & 1) != 0) {
        push_block(scores[4 * j], scores[4 * j + 1], scores[4 * j + 2], scores[4 * j + 3], gate0_, gate1_,
                   mark - 4 * j);
      }
    }
    if (!__any_sync(kAllLanes, is_full() || mark > kLastMark)) return true;
    next0_ = before0;
    next1_ = before1;
    return false;
  }

  // Joins what waits, and then takes the scores, unless they were `taken`. Candidates that equal the gate pass, and
  // even some below: the gate may have risen to the score of chunks of this very step, before which they rank if theirs
  // is the larger id. The scores are put away into local memory meanwhile: a join wants the registers.
  template <int kCount, class ListOf>
  __device__ void join_and_take(const float (&scores)[kCount], int first_chunk, bool taken, const ListOf& list_of) {
    constexpr int kBlocks = kCount / 4;
    float away[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) away[i] = scores[i];
    bool joins = true;
    int block = taken ? kBlocks : 0;
#pragma unroll 1
    do {
      if (joins) {
        join(list_of);
        clear_waiting(first_chunk + 2 * kCount);
      }
      if (block == kBlocks) break;
      const float* of_block = away + 4 * block;
      const int before0 = next0_, before1 = next1_;
      push_block(of_block[0], of_block[1], of_block[2], of_block[3], just_below(gate0_), just_below(gate1_),
                 mark_of(first_chunk) - 4 * block);
      joins = __any_sync(kAllLanes, is_full());
      if (joins) {
        next0_ = before0;
        next1_ = before1;
      } else {
        ++block;
      }
    } while (joins || block < kBlocks);
  }

  // Joins what still waits: at least `wanted` of the best of every row are kept then, all if there are fewer.
  // list_of(half) is where the list of that half's row will be written.
  template <class ListOf>
  __device__ void join(const ListOf& list_of) {
    const int waiting0 = (next0_ - first_place(0)) / kPlace, waiting1 = (next1_ - first_place(1)) / kPlace;
    // One copy of the code: it is long, and the halves differ in addresses only.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const float gate = join(half, half == 0 ? waiting0 : waiting1, half == 0 ? gate0_ : gate1_, list_of);
      if (half == 0) {
        gate0_ = gate;
      } else {
        gate1_ = gate;
      }
    }
  }

  // After join(): writes the best `listed` of a half's row, [capacity], scores times `unit`, if it is `valid`. Returns
  // the best score that is not listed; `best` becomes the best score. -inf when there is none.
  template <class ListOf>
  __device__ float write(int half, int listed, int capacity, float unit, bool valid, float& best,
                         const ListOf& list_of) const {
    float scores[kKept];
    int chunks[kKept];
    int count = 0;
    best = kNoScore;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      scores[i] = load_float(kept_line(half, i));
      chunks[i] = scores[i] > kNoScore ? kept_chunk(half, i, list_of) : -1;
      count += chunks[i] >= 0;
      best = fmaxf(best, scores[i]);
    }
    best = quad_max(best);
    const float cut = drop_worst(scores, chunks, count, listed);
    __syncwarp();  // all chunks have been read: the list may be where they stood
    int before, total;
    quad_places(count, before, total);
    Candidate* list = list_of(half);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (chunks[i] >= 0 && valid) list[before++] = {scores[i] * unit, chunks[i]};
    }
    for (int i = total + lane_ % 4; i < capacity; i += 4) {
      if (valid) list[i] = {0.0f, -1};
    }
    return cut;
  }

 private:
  static constexpr int kLastMark = 0xFFFF;

  __device__ int first_place(int half) const {
    return lines_ + lane_ * 4 + Shape::kWaitingOffset + half * kWaiting * kPlace;
  }
  __device__ int last_place(int half) const { return first_place(half) + (kWaiting - 1) * kPlace; }
  __device__ int kept_line(int half, int i) const { return lines_ + (half * kKept + i) * kLine; }
  __device__ bool is_full() const { return next0_ == last_place(0) || next1_ == last_place(1); }
  __device__ void clear_waiting(int end) {
    next0_ = first_place(0);
    next1_ = first_place(1);
    newest_pair_ = end - 2;
  }
  // Marks count pairs of chunks, from the newest one back. Of the lane's first pair from `chunk` on.
  __device__ int mark_of(int chunk) const { return (newest_pair_ - chunk) / 2 - lane_ % 4; }
  // At least one step below, and no NaN below -inf.
  __device__ static float just_below(float gate) {
    return gate > kNoScore ? value_at(max(order_of(gate) - 2, order_of(kNoScore))) : gate;
  }

  template <class ListOf>
  __device__ int& kept_chunk(int half, int i, const ListOf& list_of) const {
    return reinterpret_cast<int*>(list_of(half))[4 * i + lane_ % 4];
  }
  // The pair at a waiting place of lane `lane`.
  __device__ int pair_chunk(int place, int lane) const {
    return newest_pair_ - 2 * load_mark(place + Shape::kPairs - 6 * lane);
  }

  // Two scores of each half, of chunks next to each other.
  __device__ void push_block(float a0, float b0, float a1, float b1, float gate0, float gate1, int mark) {
    push_above<kPlace, Shape::kPairs>(a0, b0, gate0, mark, -6 * lane_, next0_, last_place(0));
    push_above<kPlace, Shape::kPairs>(a1, b1, gate1, mark, -6 * lane_, next1_, last_place(1));
  }

  // How many a quad's lower lanes have, and all of it.
  __device__ void quad_places(int count, int& before, int& total) const {
    int through = count;
    const int one = __shfl_up_sync(kAllLanes, through, 1, 4);
    if (lane_ % 4 >= 1) through += one;
    const int two = __shfl_up_sync(kAllLanes, through, 2, 4);
    if (lane_ % 4 >= 2) through += two;
    before = through - count;
    total = __shfl_sync(kAllLanes, through, 3, 4);
  }

  // Returns the new gate.
  template <class ListOf>
  __device__ float join(int half, int waiting, float gate, const ListOf& list_of) const {
    const int first = first_place(half);
    const auto place_of = [&](int i) { return first + (i - kKept) / 2 * kPlace; };
    // What came only because of its neighbour is none: the gate would fall to it.
    const float least_score = just_below(gate);
    const auto if_above = [&](float score) { return score > least_score ? score : kNoScore; };
    const auto score_of = [&](int i) {
      if (i < kKept) return load_float(kept_line(half, i));
      return (i - kKept) / 2 < waiting ? if_above(load_float(place_of(i) + (i - kKept) % 2 * 4)) : kNoScore;
    };
    const auto chunk_of = [&](int i) {
      if (i < kKept) return kept_chunk(half, i, list_of);
      return pair_chunk(place_of(i), lane_) + (i - kKept) % 2;
    };
    float scores[kCandidates];
#pragma unroll
    for (int i = 0; i < kKept; ++i) scores[i] = load_float(kept_line(half, i));
#pragma unroll
    for (int i = 0; i < kMostWaiting; ++i) {
      const float2 pair = i < waiting ? load_pair(first + i * kPlace) : make_float2(kNoScore, kNoScore);
      scores[kKept + 2 * i] = if_above(pair.x);
      scores[kKept + 2 * i + 1] = if_above(pair.y);
    }
    const Cut cut = cut_candidates(scores, score_of, chunk_of, least_, most_);

    unsigned free = 0, coming = 0;  // kept places, and waiting candidates that stay
#pragma unroll
    for (int i = 0; i < kKept; ++i) free |= scores[i] > cut.score ? 0u : 1u << i;
#pragma unroll
    for (int i = 0; i < 2 * kMostWaiting; ++i) coming |= scores[kKept + i] > cut.score ? 1u << i : 0u;
    if (__any_sync(kAllLanes, cut.chunk != kNoChunk)) {
#pragma unroll 1
      for (int i = 0; i < kCandidates; ++i) {
        if (score_of(i) != cut.score || cut.chunk == kNoChunk || !cut.keeps(cut.score, chunk_of(i))) continue;
        if (i < kKept) {
          free &= ~(1u << i);
        } else {
          coming |= 1u << (i - kKept);
        }
      }
    }
    fill_free_places(half, first, free, coming, list_of);
    return cut.score > kNoScore ? cut.score : gate;
  }

  // The n-th candidate that comes, of the quad's lanes in turn, takes the n-th free place. `free` and `coming` are bits
  // of the lane's own places.
  template <class ListOf>
  __device__ void fill_free_places(int half, int first, unsigned free, unsigned coming, const ListOf& list_of) const {
    int place, places, before, total;
    quad_places(__popc(free), place, places);
    quad_places(__popc(coming), before, total);
    // The lane's first one, and those that come from other lanes after it.
    int from = 0, skip = place;
    unsigned rest = 0, later[3] = {0, 0, 0};
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const unsigned there = __shfl_sync(kAllLanes, coming, lane, 4);
      const int before_there = __shfl_sync(kAllLanes, before, lane, 4);
      if (before_there <= place) {
        from = lane;
        skip = place - before_there;
        rest = there;
      } else {
        // Lanes after `from` in turn: those that have none are passed over below.
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          if (lane == from + 1 + i) later[i] = there;
        }
      }
    }
    for (; skip > 0; --skip) rest &= rest - 1;
    __syncwarp();
    for (; free != 0; free &= free - 1) {
      while (rest == 0 && from < 3) {
        rest = later[0];
        later[0] = later[1];
        later[1] = later[2];
        ++from;
      }
      const int to = __ffs(static_cast<int>(free)) - 1;
      if (rest == 0) {
        store_float(kept_line(half, to), kNoScore);
        continue;
      }
      const int comes = __ffs(static_cast<int>(rest)) - 1, lanes_on = from - lane_ % 4;
      const int coming_place = first + comes / 2 * kPlace + lanes_on * 8;
      rest &= rest - 1;
      store_float(kept_line(half, to), load_float(coming_place + comes % 2 * 4));
      kept_chunk(half, to, list_of) = pair_chunk(coming_place, lane_ + lanes_on) + comes % 2;
    }
    __syncwarp();
  }

  // Until no more than `listed` are left of each row. Returns the best score that was dropped.
  __device__ float drop_worst(float (&scores)[kKept], int (&chunks)[kKept], int& count, int listed) const {
    float cut = kNoScore;
    for (int total = quad_sum(count); __any_sync(kAllLanes, total > listed); --total) {
      float worst = -kNoScore;
      int chunk = kNoChunk;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        if (chunks[i] >= 0 && (scores[i] < worst || (scores[i] == worst && chunks[i] < chunk))) {
          worst = scores[i];
          chunk = chunks[i];
        }
      }
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        const float other = __shfl_xor_sync(kAllLanes, worst, lanes);
        const int other_chunk = __shfl_xor_sync(kAllLanes, chunk, lanes);
        if (other < worst || (other == worst && other_chunk < chunk)) {
          worst = other;
          chunk = other_chunk;
        }
      }
      if (total <= listed) continue;
      cut = worst;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        if (chunks[i] != chunk) continue;
        chunks[i] = -1;
        --count;
      }
    }
    return cut;
  }

  int lines_;  // of this lane
  int lane_;
  int least_;
  int most_;
  float gate0_ = 0.0f;
  float gate1_ = 0.0f;
  int newest_pair_ = 0;
  int next0_ = 0;  // addresses of the next waiting places
  int next1_ = 0;
};

}  // namespace ringmark::kernels::cuda::hopper
