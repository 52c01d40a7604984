// Attention on Hopper: wgmma over blocks in BlockOrder::kSwizzled. Arguments as in kernels/cuda/attend.h.
// Shapes: has_tensor_kernels. Compute capability 9.0 only.
#pragma once

#include "kernels/cuda/attend.h"

namespace ringmark::kernels::cuda::hopper {

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream);

// `plan` holds the selection; it is not read again.
void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::hopper
