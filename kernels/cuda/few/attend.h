// Attention of few rows that each read much: decoding. What a row reads is cut into parts, thread blocks of their own,
// whose results are joined in ascending order. How a row is cut follows from the row alone, so that its result depends
// on no other row. Any head_dim, chunk size, group and dtype; fp32 on the plain cores. Blocks in plain order.
#pragma once

#include <algorithm>

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda::few {

// Parts of a row at most: enough thread blocks for a whole GPU when one row is alone.
inline constexpr std::int32_t kMostParts = 32;

// Results of the parts of some rows, on the device.
struct PartRoom {
  float* out = nullptr;    // [rows, H, kMostParts, d]
  float2* mass = nullptr;  // [rows, H, kMostParts] {largest logit, sum of exp(logit - largest)}; sum 0: nothing

  static std::int64_t masses_of(const LayerShape& shape, std::int64_t rows) { return rows * shape.heads * kMostParts; }
  static std::int64_t floats_of(const LayerShape& shape, std::int64_t rows) {
    return masses_of(shape, rows) * shape.head_dim;
  }
};

// Which of `count` things in a row a part takes.
struct PartRange {
  std::int32_t begin;
  std::int32_t end;

  __host__ __device__ static PartRange of(std::int32_t count, std::int32_t part) {
    const std::int32_t length = (count + kMostParts - 1) / kMostParts;
    const std::int32_t first = part * length, last = first + length;
    return {first < count ? first : count, last < count ? last : count};
  }
};

// As kernels::cuda::attend_window. most_chunks: what one of the rows reads, sinks, window and own chunk, at most.
void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, std::int32_t most_chunks, const PartRoom& room, float* out,
                   float* lse, cudaStream_t stream);

// As kernels::cuda::score_chosen, the same bits.
void score_chosen(const LayerShape& shape, const std::byte* queries, RowRange rows, const std::int32_t* selection,
                  const float* const* records, float* chosen_scores, cudaStream_t stream);

// As kernels::cuda::attend_chosen.
void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const std::int32_t* selection, const float* chosen_scores,
                   const float* window_weight, const PartRoom& room, float* out, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::few
