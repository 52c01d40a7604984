// Which chunks the rows of a tile see through the window and the sinks, and how much of each.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/hopper/attend_tile.cuh"

namespace ringmark::kernels::cuda::hopper {

// How the rows of a half see a chunk.
enum class View : std::uint8_t {
  kNone,        // no row sees a key
  kWhole,       // every row sees all 64
  kAllButLast,  // every row sees all but the landmark slot
  kAny,         // nothing is said
};

struct WindowItem {
  std::int32_t chunk = 0;
  std::int16_t slots_end = 0;
  std::int16_t sink_end = 0;
  View view[kHalves] = {View::kNone, View::kNone};
  std::uint8_t last = 0;

  __device__ bool wanted_by(int half) const { return view[half] != View::kNone; }
  __device__ void want(int half) {
    if (!wanted_by(half)) view[half] = View::kAny;
  }
};

// What a row sees, in few registers.
struct RowView {
  std::int32_t end = 0;  // its chunk * 64 + visible slots there
  std::int32_t window_first = 0;
  std::int32_t sink_first = 0;
  std::int32_t sink_end = 0;

  __device__ void look(const RowGeometry& row) {
    *this = {row.chunk * kChunkKeys + row.visible, row.window_first, row.sink_first, row.sink_last};
  }
  // The row sees slots [0, this) of a chunk; none where it is negative.
  __device__ int slots(const WindowItem& item) const {
    if (item.chunk >= window_first) return min(end - item.chunk * kChunkKeys, int{item.slots_end});
    return item.chunk >= sink_first && item.chunk < sink_end ? item.sink_end : 0;
  }
};

// Chunks [first, end), each seen by a row of the tile.
struct ChunkRun {
  std::int32_t first = 0;
  std::int32_t end = 0;

  __device__ bool empty() const { return first >= end; }
};

// For the loading warp; all its lanes call each function together. The rows of a tile may see distant ranges: documents
// end inside it, and so do the pieces of a rank's layout.
class WindowChunks {
 public:
  __device__ WindowChunks(const TileGrid& grid, const Geometry& geometry, const Tile& tile) : chunks_(geometry.chunks) {
    const int lane = threadIdx.x % 32, half = lane / 16;
    const int valid_queries = grid.valid_queries(tile, half);
    const RowGeometry* rows = geometry.rows + grid.first_query(tile, half);
    std::int32_t first = INT_MAX, last = -1, whole_first = 0, whole_end = INT_MAX;
#pragma unroll
    for (int i = 0; i < kRowsPerLane; ++i) {
      const int query = lane % 16 + 16 * i;
      if (query >= valid_queries) continue;
      const RowGeometry& row = rows[query];
      rows_[i] = {row.window_first, row.chunk + 1, row.sink_first, row.sink_last};
      first = min(first, row.sink_first < row.sink_last ? row.sink_first : row.window_first);
      last = max(last, row.chunk);
      whole_first = max(whole_first, row.window_first);
      whole_end = min(whole_end, row.chunk);
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const unsigned lanes = 0xFFFFu << (16 * h);
      if (h != half) continue;
      first_ = __reduce_min_sync(lanes, first);
      last_ = __reduce_max_sync(lanes, last);
      whole_first_ = __reduce_max_sync(lanes, whole_first);
      whole_end_ = __reduce_min_sync(lanes, whole_end);
    }
    __syncwarp();
  }

  // The first run at or after `from`; empty when no row sees a chunk there.
  __device__ ChunkRun next_run(std::int32_t from) const {
    std::int32_t first = INT_MAX;
#pragma unroll
    for (const SeenByRow& row : rows_) {
      if (from < row.sink_end && row.sink_first < row.sink_end) first = min(first, max(from, row.sink_first));
      if (from < row.window_end) first = min(first, max(from, row.window_first));
    }
    first = __reduce_min_sync(0xFFFFFFFFu, first);
    std::int32_t end = first;
#pragma unroll
    for (const SeenByRow& row : rows_) {
      if (row.sink_first <= first && first < row.sink_end) end = max(end, row.sink_end);
      if (row.window_first <= first && first < row.window_end) end = max(end, row.window_end);
    }
    return {first, __reduce_max_sync(0xFFFFFFFFu, end)};
  }

  // What the consumers must know of a chunk (one a lane); `last` is left to the caller. A half is spared a chunk
  // outside the hull of what its rows see.
  __device__ WindowItem item(std::int32_t chunk) const {
    const ChunkGeometry geometry = chunks_[chunk];
    WindowItem item{chunk, geometry.slots_end, geometry.sink_end};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const auto of_half = [half](std::int32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 16 * half); };
      const std::int32_t first = of_half(first_), last = of_half(last_);
      const std::int32_t whole_first = of_half(whole_first_), whole_end = of_half(whole_end_);
      if (chunk < first || chunk > last) continue;
      const bool whole = whole_first <= chunk && chunk < whole_end;
      item.view[half] = whole && geometry.slots_end == kChunkKeys       ? View::kWhole
                        : whole && geometry.slots_end + 1 == kChunkKeys ? View::kAllButLast
                                                                        : View::kAny;
    }
    return item;
  }

 private:
  static constexpr int kRowsPerLane = kHalfRows / 16;

  // Chunks [first, end) through the window, and through the sinks.
  struct SeenByRow {
    std::int32_t window_first = 0;
    std::int32_t window_end = 0;
    std::int32_t sink_first = 0;
    std::int32_t sink_end = 0;
  };

  const ChunkGeometry* chunks_;
  SeenByRow rows_[kRowsPerLane];  // of this lane; of lanes below 16 in the first half
  // Of this lane's half: the hull of what its rows see; the chunks before their own that all of them see.
  std::int32_t first_;
  std::int32_t last_;
  std::int32_t whole_first_;
  std::int32_t whole_end_;
};

}  // namespace ringmark::kernels::cuda::hopper
