#include "kernels/cuda/few/attend.h"

#include "kernels/cuda/few/parts.h"

namespace ringmark::kernels::cuda::few {

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, std::int32_t most_chunks, const PartRoom& room, float* out,
                   float* lse, cudaStream_t stream) {
  if (rows.empty()) return;
  const std::int32_t parts = std::min(most_chunks, kMostParts);
  attend_parts(shape, geometry, blocks, queries, rows, {}, parts, room, stream);
  merge_parts(shape, rows, parts, room, out, lse, stream);
}

void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const std::int32_t* selection, const float* chosen_scores,
                   const float* window_weight, const PartRoom& room, float* out, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  const std::int32_t parts = std::min(shape.topk, kMostParts);
  attend_parts(shape, geometry, blocks, queries, rows, {selection, chosen_scores}, parts, room, stream);
  add_parts(shape, rows, parts, room, window_weight, out, stream);
}

}  // namespace ringmark::kernels::cuda::few
