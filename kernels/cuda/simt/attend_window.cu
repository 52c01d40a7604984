#include "kernels/cuda/simt/attend.h"
#include "kernels/cuda/simt/attend_warp.cuh"

namespace ringmark::kernels::cuda::simt {
namespace {

struct Window {
  LayerShape shape;
  Geometry geometry;
  const std::byte* const* blocks;
  const std::byte* queries;
  RowRange rows;
  float* out;
  float* lse;
};

// Sinks below the window, whole chunks of the window, own chunk: one loop, so that the code of a chunk exists once.
template <DType kDType, int kParts, int kHeads>
__device__ void attend_row(const Window& window, const WarpTask& task, WarpAttention<kDType, kParts, kHeads>& warp) {
  const LayerShape& shape = window.shape;
  const RowGeometry row = window.geometry.rows[task.row];
  std::int32_t chunk = row.sink_first < row.sink_last ? row.sink_first : row.window_first;
  while (chunk <= row.chunk) {
    const ChunkGeometry geometry = window.geometry.chunks[chunk];
    const int visible = chunk < row.window_first ? geometry.sink_end
                        : chunk < row.chunk      ? geometry.slots_end
                                                 : row.visible;
    const std::byte* keys = window.blocks[block_index(shape, chunk, task.kv_head)];
    warp.attend(keys, keys + value_offset<kDType>(shape), 0, min(visible, static_cast<int>(geometry.slots_end)));
    if (++chunk == row.sink_last) chunk = row.window_first;
  }
}

template <DType kDType, int kParts, int kHeads>
__global__ void __launch_bounds__(32 * kWarps) attend_window_kernel(Window window) {
  WarpTask task;
  if (!warp_task<kHeads>(window.shape, window.rows, task)) return;
  const LayerShape& shape = window.shape;
  const std::int64_t first = task.row * shape.heads + task.head;
  WarpAttention<kDType, kParts, kHeads> warp(shape, window.queries + first * shape.head_dim * size_of(kDType));
  attend_row(window, task, warp);
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const float sum = warp.sum(head), top = warp.top(head);
    if (warp.lane() == 0) window.lse[first + head] = sum > 0.0f ? top + logf(sum) : -kInfinity;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (!warp.holds(part)) continue;
      window.out[(first + head) * shape.head_dim + warp.channel_of(part)] =
          sum > 0.0f ? warp.out(head, part) / sum : 0.0f;
    }
  }
}

}  // namespace

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream) {
  const Window window{shape, geometry, blocks.table, queries, rows, out, lse};
  with_constants(shape, [&]<DType kDType, int kParts, int kHeads>() {
    attend_window_kernel<kDType, kParts, kHeads><<<warp_grid(shape, rows, kHeads), 32 * kWarps, 0, stream>>>(window);
  });
  ringmark::cuda::check_launch("attend_window");
}

}  // namespace ringmark::kernels::cuda::simt
