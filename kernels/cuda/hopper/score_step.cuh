// One step of 64 chunks for the 64 rows of a warpgroup: products of both terms, scores, and who may choose what.
#pragma once

#include <climits>

#include "kernels/cuda/hopper/score_work.cuh"
#include "kernels/cuda/hopper/wgmma.cuh"

namespace ringmark::kernels::cuda::hopper {

// Row lane / 4 (half 0) or lane / 4 + 8 (half 1) of the warp's 16.
__device__ inline std::int64_t row_of_half(const ScoreItem& item, int warp, int lane, int half) {
  return item.first_row + warp * 16 + half * 8 + lane / 4;
}

// Chunks that the row may choose; none for a row outside the call.
__device__ inline Span eligible_chunks(const ScoreCall& call, const ScoreItem& item, std::int64_t row) {
  if (row >= item.end_row) return {};
  return {call.geometry[row].eligible_first, call.geometry[row].eligible_end};
}

// What the 16 rows of a warp want of the item's steps; rows that may choose no chunk want nothing.
struct WarpSpans {
  Span any{INT_MAX, 0};  // chunks from the first to the last one that a row may choose
  Span all{0, INT_MAX};  // chunks that every row may choose

  __device__ WarpSpans(const Span& eligible0, const Span& eligible1) {
    add(eligible0);
    add(eligible1);
    any = {__reduce_min_sync(kAllLanes, any.first), __reduce_max_sync(kAllLanes, any.end)};
    all = {__reduce_max_sync(kAllLanes, all.first), __reduce_min_sync(kAllLanes, all.end)};
  }
  __device__ bool need(int first_chunk) const { return first_chunk < any.end && first_chunk + kStepChunks > any.first; }
  __device__ bool need_whole(int first_chunk) const {
    return first_chunk >= all.first && first_chunk + kStepChunks <= all.end;
  }

 private:
  __device__ void add(const Span& eligible) {
    if (eligible.empty()) return;
    any = {min(any.first, eligible.first), max(any.end, eligible.end)};
    all = {max(all.first, eligible.first), min(all.end, eligible.end)};
  }
};

// The rows of a warpgroup as operand A of wgmma; rows outside the call are zero.
template <int kHeadDim>
__device__ void load_queries(std::uint32_t (&queries)[kHeadDim / 16][4], const ScoreCall& call, const ScoreItem& item,
                             int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = row_of_half(item, warp, lane, half);
    const auto* words =
        reinterpret_cast<const std::uint32_t*>(call.queries + (row * call.heads + item.head) * (kHeadDim * 2));
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      queries[k][half] = row < item.end_row ? words[k * 8 + lane % 4] : 0;
      queries[k][2 + half] = row < item.end_row ? words[k * 8 + 4 + lane % 4] : 0;
    }
  }
}

// The descriptor of a place `bytes` behind that of another; both in the same 256 KiB.
__device__ inline std::uint64_t descriptor_behind(std::uint64_t descriptor, int bytes) {
  const auto low = static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4);
  return (descriptor >> 32 << 32) | low;
}

// Asks for products = q . (hi + lo) of 64 rows and 64 chunks. The small products come first: what the accumulators then
// cut off is smallest.
template <int kHeadDim>
__device__ void begin_products(float (&products)[32], const std::uint32_t (&queries)[kHeadDim / 16][4],
                               const std::byte* terms) {
  constexpr int kHalves = kHeadDim / 64;
  const std::uint64_t first = swizzled_descriptor(terms);
  fence_accumulators(products);
  wgmma_fence();
#pragma unroll
  for (int term = 1; term >= 0; --term) {
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const std::uint64_t group = descriptor_behind(first, (term * kHalves + k / 4) * kPieceBytes + k % 4 * 32);
      Wgmma<__half, kStepChunks, false>::register_shared(products, queries[k], group, term == 0 || k > 0);
    }
  }
  wgmma_commit();
}

// scores = products * the row's factor + bias, in place; register 4 j + 2 half + e is chunk 8 j + 2 (lane mod 4) + e of
// the step.
__device__ inline void scale_scores(float (&scores)[32], float factor0, float factor1, const float2* bias, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 pair = bias[4 * j + lane % 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[4 * j + e] = fmaf(scores[4 * j + e], e < 2 ? factor0 : factor1, e % 2 == 0 ? pair.x : pair.y);
    }
  }
}

// -inf for chunks that the row of a half may not choose.
template <int kHalf>
__device__ void mask_scores(float (&scores)[32], const Span& eligible, int first_chunk, int lane) {
  const auto count = static_cast<unsigned>(eligible.empty() ? 0 : eligible.end - eligible.first);
  const int own = first_chunk + 2 * (lane % 4) - eligible.first;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    const auto chunk = static_cast<unsigned>(own + n / 2 * 8 + n % 2);
    if (chunk >= count) scores[n / 2 * 4 + 2 * kHalf + n % 2] = -__builtin_huge_valf();
  }
}

}  // namespace ringmark::kernels::cuda::hopper
