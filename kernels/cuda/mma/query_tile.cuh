// The rows of a tile, 16 a warp: row r is query r / sharing of the tile and the (r % sharing)-th of the `sharing` heads
// that use the same keys. A lane works on rows lane / 4 and lane / 4 + 8 of its warp: its upper and its lower row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/layer.h"
#include "kernels/cuda/mma/instructions.cuh"

namespace ringmark::kernels::cuda::mma {

struct TileShape {
  std::int32_t heads;       // of a row of the layer
  std::int32_t sharing;     // 1, 2, 4, 8 or 16
  std::int32_t first_head;  // of those that share the keys
  std::int64_t first_row;   // the tile's first query
  std::int64_t end_row;     // of the range; queries at or after it are none

  // Pairs of row and head count as row * heads + head.
  __device__ std::int64_t first_pair() const { return first_row * heads + first_head; }
};

struct LaneRows {
  int query[2];  // within the tile
  int pair[2];   // from first_pair() on; -1 past the range
};

__device__ inline LaneRows lane_rows(const TileShape& tile) {
  LaneRows rows;
  const int shift = __ffs(tile.sharing) - 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = warp_id() * 16 + i * 8 + lane_id() / 4;
    rows.query[i] = r >> shift;
    const int pair = rows.query[i] * tile.heads + (r & (tile.sharing - 1));
    rows.pair[i] = tile.first_row + rows.query[i] < tile.end_row ? pair : -1;
  }
  return rows;
}

// The warp's 16 rows of [pairs][kHeadDim] as left operands of multiply_add; zeros past the range.
template <int kHeadDim>
__device__ inline void load_queries(std::uint32_t (&q)[kHeadDim / 16][4], const std::byte* queries,
                                    const TileShape& tile, const LaneRows& rows) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t pair = tile.first_pair() + rows.pair[i];
    const auto* row = reinterpret_cast<const std::uint32_t*>(queries + pair * (kHeadDim * 2)) + lane_id() % 4;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      q[k][i] = rows.pair[i] < 0 ? 0u : __ldg(row + k * 8);
      q[k][i + 2] = rows.pair[i] < 0 ? 0u : __ldg(row + k * 8 + 4);
    }
  }
}

}  // namespace ringmark::kernels::cuda::mma
