// What the parts of settle_choices share: the call, the rows of a warp and its shared memory.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/list_walk.cuh"
#include "kernels/cuda/score.h"
#include "kernels/cuda/term_scores.cuh"

namespace ringmark::kernels::cuda {

constexpr float kInfinity = __builtin_huge_valf();
constexpr std::int32_t kNoChunk = 0x7FFFFFFF;
constexpr std::uint32_t kMissing = 0x7FFFFFFF;  // bits of a score that is not known; a NaN

struct Settling {
  LayerShape shape;
  const std::byte* queries;
  RowRange rows;
  LandmarkTiles tiles;
  const float* const* records;
  ApproximateLists lists;
  const float* lse_window;
  std::int32_t* selection;
  float* chosen_scores;
  ScoringItem* open;
  unsigned long long* open_count;
  std::int32_t slots;          // of the table of picked chunks of a group
  std::uint32_t per_capacity;  // 2^20 / capacity and 2^20 / topk, rounded up: to divide numbers below 4096
  std::uint32_t per_topk;
  std::int32_t landmark_shift;  // log2 of the query heads of a landmark head

  __device__ int list_of_entry(int entry) const { return static_cast<int>(entry * per_capacity >> 20); }
  __device__ int list_of_score(int at) const { return static_cast<int>(at * per_topk >> 20); }
  // One more than the entries, so that lanes at the same place of their lists find all banks free.
  __host__ __device__ int list_stride() const { return lists.capacity + 1; }
  __host__ __device__ int score_stride() const { return shape.topk + 1; }
  __host__ __device__ int pick_stride() const { return (shape.topk + 3) / 4 * 4; }
  // One more than the slots: neighbouring rows look for the same chunks.
  __host__ __device__ int table_stride() const { return slots + 1; }
  __host__ __device__ int groups() const { return 32 / shape.group; }
  // Room for the scores of picks; before there are any, for a query.
  __host__ __device__ int score_words() const {
    const int scores = 32 * score_stride();
    return scores > shape.head_dim ? scores : shape.head_dim;
  }
  // Shared memory of a warp.
  __host__ __device__ int warp_bytes() const {
    const int words = 64 * list_stride() + score_words() + groups() * (2 * pick_stride() + table_stride());
    return (words + 3) / 4 * 16;
  }
};

struct Scratch {
  std::int32_t* picks;   // [groups][pick_stride] chunks, from the best on; behind them kNoChunk
  std::int32_t* sorted;  // [groups][pick_stride] numbers of picks, by ascending chunk
  Candidate* lists;      // [32][list_stride]
  float* scores;         // [32][score_stride] of picks; kMissing until known
  std::uint32_t* table;  // [groups][table_stride], PickedChunks

  __device__ Scratch(std::byte* memory, const Settling& s) {
    picks = reinterpret_cast<std::int32_t*>(memory);
    sorted = picks + s.groups() * s.pick_stride();
    lists = reinterpret_cast<Candidate*>(sorted + s.groups() * s.pick_stride());
    scores = reinterpret_cast<float*>(lists + 32 * s.list_stride());
    table = reinterpret_cast<std::uint32_t*>(scores + s.score_words());
  }
  __device__ PickedChunks picked(const Settling& s, int group) const {
    return {table + group * s.table_stride(), s.slots};
  }
};

// What a warp works on: the heads of one kv head in consecutive rows. A lane has one (row, head) pair.
template <int kGroup>
struct Span {
  static constexpr int kRows = 32 / kGroup;

  std::int64_t first_row;  // of the range
  std::int64_t first_head;
  int rows;  // fewer at the end

  __device__ Span(const Settling& s, std::int64_t number, int kv_head)
      : first_row(number * kRows),
        first_head(std::int64_t{kv_head} * kGroup),
        rows(static_cast<int>(max(std::int64_t{0}, min(std::int64_t{kRows}, s.rows.size() - first_row)))) {}

  __device__ std::int32_t head(int lane) const { return static_cast<std::int32_t>(first_head) + lane % kGroup; }
  // Number of a lane's pair among those of the range, and of the rank.
  __device__ std::int64_t of_range(const Settling& s, int lane) const {
    return (first_row + lane / kGroup) * s.shape.heads + first_head + lane % kGroup;
  }
  __device__ std::int64_t of_rank(const Settling& s, int lane) const {
    return s.rows.begin * s.shape.heads + of_range(s, lane);
  }
  __device__ std::int64_t row_of_rank(const Settling& s, int lane) const {
    return s.rows.begin + first_row + lane / kGroup;
  }
};

}  // namespace ringmark::kernels::cuda
