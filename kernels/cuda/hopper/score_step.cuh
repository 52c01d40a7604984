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

// Chunks that all of a warp's 16 rows may choose, but for rows that may choose none: what these find does not count.
__device__ inline Span chunks_of_all(const Span& eligible0, const Span& eligible1) {
  Span all{0, INT_MAX};
  for (const Span& eligible : {eligible0, eligible1}) {
    if (!eligible.empty()) all = {max(all.first, eligible.first), min(all.end, eligible.end)};
  }
  return {__reduce_max_sync(kAllLanes, all.first), __reduce_min_sync(kAllLanes, all.end)};
}

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

// products = q . (hi + lo) of 64 rows and 64 chunks are asked for in parts, other work between them; the last part
// commits them all. `first` is the descriptor of the step's terms. The small products come first: what the accumulators
// then cut off is smallest.
constexpr int kParts = 8;
template <int kHeadDim>
__device__ void multiply_part(float (&products)[32], const std::uint32_t (&queries)[kHeadDim / 16][4],
                              std::uint64_t first, int part) {
  constexpr int kHalves = kHeadDim / 64, kGroups = kHeadDim / 16;
  wgmma_fence();
#pragma unroll
  for (int n = part * kHalves; n < (part + 1) * kHalves; ++n) {
    const int term = n < kGroups ? 1 : 0, k = n % kGroups;
    const std::uint64_t group = descriptor_behind(first, (term * kHalves + k / 4) * kPieceBytes + k % 4 * 32);
    Wgmma<__half, kStepChunks, false>::register_shared(products, queries[k], group, n > 0);
  }
  if (part == kParts - 1) wgmma_commit();
}

// scores = products * the row's factor + bias, in place; register 4 j + 2 half + e of a step is chunk
// 8 j + 2 (lane mod 4) + e. Block j; the bias is that of the lane's two chunks.
__device__ inline void scale_block(float* block, float factor0, float factor1, float2 bias) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    block[e] = fmaf(block[e], e < 2 ? factor0 : factor1, e % 2 == 0 ? bias.x : bias.y);
  }
}

// The products of chunks that the row of a half may not choose become what the factor makes a score of -inf.
template <int kHalf>
__device__ void mask_products(float (&products)[32], float factor, const Span& eligible, int first_chunk, int lane) {
  const float masked = copysignf(__builtin_huge_valf(), -factor);
  const auto count = static_cast<unsigned>(eligible.empty() ? 0 : eligible.end - eligible.first);
  const int own = first_chunk + 2 * (lane % 4) - eligible.first;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    const auto chunk = static_cast<unsigned>(own + n / 2 * 8 + n % 2);
    if (chunk >= count) products[n / 2 * 4 + 2 * kHalf + n % 2] = masked;
  }
}

}  // namespace ringmark::kernels::cuda::hopper
