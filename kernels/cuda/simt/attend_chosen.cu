#include "kernels/cuda/simt/attend.h"
#include "kernels/cuda/simt/attend_warp.cuh"

namespace ringmark::kernels::cuda::simt {
namespace {

struct Chosen {
  LayerShape shape;
  Geometry geometry;
  const std::byte* const* blocks;
  const std::byte* queries;
  RowRange rows;
  const std::int32_t* selection;
  const float* scores;
  const float* window_weight;
  float* out;
};

// mixed += exp(score) * softmax inside the chunk.
template <DType kDType, int kParts, int kHeads>
__device__ void mix_chunk(const Chosen& chosen, const WarpTask& task, int slot, std::int32_t chunk,
                          WarpAttention<kDType, kParts, kHeads>& warp, float (&mixed)[kHeads][kParts]) {
  const LayerShape& shape = chosen.shape;
  const ChunkGeometry geometry = chosen.geometry.chunks[chunk];
  const std::byte* keys = chosen.blocks[block_index(shape, chunk, task.kv_head)];
  warp.clear();
  warp.attend(keys, keys + value_offset<kDType>(shape), geometry.key_begin, geometry.key_end);
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const std::int64_t row_head = task.row * shape.heads + task.head + head;
    const float sum = warp.sum(head);
    const float weight = sum > 0.0f ? expf(chosen.scores[row_head * shape.topk + slot]) / sum : 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      mixed[head][part] = fmaf(weight, warp.out(head, part), mixed[head][part]);
    }
  }
}

template <DType kDType, int kParts, int kHeads>
__global__ void __launch_bounds__(32 * kWarps) attend_chosen_kernel(Chosen chosen) {
  WarpTask task;
  if (!warp_task<kHeads>(chosen.shape, chosen.rows, task)) return;
  const LayerShape& shape = chosen.shape;
  const std::int32_t* chunks = chosen.selection + (task.row * shape.kv_heads + task.kv_head) * shape.topk;
  if (chunks[0] < 0) return;
  const std::int64_t first = task.row * shape.heads + task.head;
  WarpAttention<kDType, kParts, kHeads> warp(shape, chosen.queries + first * shape.head_dim * size_of(kDType));
  float mixed[kHeads][kParts];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const float weight = chosen.window_weight[first + head];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      // An empty window has weight 0, and its result may be anything.
      const bool counts = warp.holds(part) && weight != 0.0f;
      mixed[head][part] = counts ? weight * chosen.out[(first + head) * shape.head_dim + warp.channel_of(part)] : 0.0f;
    }
  }
  for (int slot = 0; slot < shape.topk && chunks[slot] >= 0; ++slot) {
    mix_chunk(chosen, task, slot, chunks[slot], warp, mixed);
  }
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (!warp.holds(part)) continue;
      chosen.out[(first + head) * shape.head_dim + warp.channel_of(part)] = mixed[head][part];
    }
  }
}

}  // namespace

void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan&, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream) {
  const Chosen chosen{shape, geometry, blocks.table, queries, rows, selection, chosen_scores, window_weight, out};
  with_constants(shape, [&]<DType kDType, int kParts, int kHeads>() {
    attend_chosen_kernel<kDType, kParts, kHeads><<<warp_grid(shape, rows, kHeads), 32 * kWarps, 0, stream>>>(chosen);
  });
  ringmark::cuda::check_launch("attend_chosen");
}

}  // namespace ringmark::kernels::cuda::simt
