// The tile of the attention kernels, who works on it, and the order of tiles.
//
// A tile is 128 rows of one kv head in two halves of 64. Row r of a half is head r mod group of query r / group, so a
// query's heads are neighbours. A thread block has three warpgroups. Warps of the first serve the others: one loads
// blocks, one loads the queries of each half, one fetches tiles. Each of the others computes one half. Thread blocks
// stay and walk over tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/hopper/primitives.cuh"
#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda::hopper {

inline constexpr int kHalves = 2;
inline constexpr int kHalfRows = 64;
inline constexpr int kTileRows = kHalves * kHalfRows;
inline constexpr int kChunkKeys = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kThreads = (1 + kHalves) * kWarpgroupThreads;
// A full register file: 128 * 56 + 256 * 224 of 65536.
inline constexpr int kLoaderRegisters = 56;
inline constexpr int kConsumerRegisters = 224;

struct Tile {
  std::uint32_t row_tile = 0;
  std::uint32_t kv_head = 0;
  std::int64_t first_row = 0;
};

// The tiles of rows [begin, end), counted from `begin`. Passed by value to kernels.
struct TileGrid {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t row_tiles = 0;
  std::uint32_t kv_heads = 1;
  std::int32_t heads = 1;
  std::int32_t group_shift = 0;

  TileGrid(const LayerShape& shape, RowRange rows)
      : begin(rows.begin),
        end(rows.end),
        kv_heads(static_cast<std::uint32_t>(shape.kv_heads)),
        heads(shape.heads),
        group_shift(std::countr_zero(static_cast<std::uint32_t>(shape.group))) {
    const std::int64_t queries = kTileRows >> group_shift;
    const std::int64_t tiles_of_head = (rows.size() + queries - 1) / queries;
    require(tiles_of_head * shape.kv_heads < std::int64_t{1} << 31, "an attention call has less than 2^31 tiles");
    row_tiles = static_cast<std::uint32_t>(tiles_of_head);
  }
  __host__ __device__ std::uint32_t tiles() const { return row_tiles * kv_heads; }

  __device__ int half_queries() const { return kHalfRows >> group_shift; }
  __device__ std::int64_t first_query(const Tile& tile, int half) const {
    return tile.first_row + half * half_queries();
  }
  // Queries of a half that are inside [begin, end).
  __device__ int valid_queries(const Tile& tile, int half) const {
    const std::int64_t left = end - first_query(tile, half);
    return left < 0 ? 0 : left < half_queries() ? static_cast<int>(left) : half_queries();
  }
  // Row r of a half in arrays [rows, H].
  __device__ std::int64_t row_and_head(const Tile& tile, int half, int r) const {
    const std::int64_t row = first_query(tile, half) + (r >> group_shift);
    return row * heads + (static_cast<int>(tile.kv_head) << group_shift) + (r & ((1 << group_shift) - 1));
  }

  // One kv head after the other, whose blocks then stay in the L2 cache; inside it the last rows first, which see the
  // most under a causal mask.
  __device__ Tile tile_at(std::uint32_t place) const {
    const std::uint32_t row_tile = row_tiles - 1 - place % row_tiles;
    return {row_tile, place / row_tiles, begin + std::int64_t{row_tile} * (kTileRows >> group_shift)};
  }
};

// Row of the half that is row e (0 or 1) of this consumer thread's accumulators.
__device__ inline int thread_row(int e) {
  return threadIdx.x % kWarpgroupThreads / 32 * 16 + threadIdx.x % 32 / 4 + 8 * e;
}

// Calls launch.operator()<Element, head_dim>() for the shape's types.
template <class Launch>
void with_shape(const LayerShape& shape, Launch launch) {
  require(has_tensor_kernels(shape), "the Hopper attention kernels are given a shape they have");
  if (shape.dtype == DType::kBfloat16) {
    shape.head_dim == 64 ? launch.template operator()<__nv_bfloat16, 64>()
                         : launch.template operator()<__nv_bfloat16, 128>();
  } else {
    shape.head_dim == 64 ? launch.template operator()<__half, 64>() : launch.template operator()<__half, 128>();
  }
}

// One thread block a multiprocessor: shared memory holds no second one.
inline unsigned resident_blocks(std::uint32_t tiles) {
  int device = 0, multiprocessors = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                        "ask for the number of multiprocessors");
  return std::min(tiles, static_cast<std::uint32_t>(multiprocessors));
}

}  // namespace ringmark::kernels::cuda::hopper
