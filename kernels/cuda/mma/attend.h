// Attention by mma.sync: compute capability 8.0 and later, any shape of has_tensor_kernels(). Blocks in
// BlockOrder::kSwizzled. Arguments and results as in kernels/cuda/attend.h.
#pragma once

#include "kernels/cuda/attend.h"

namespace ringmark::kernels::cuda::mma {

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream);

// The plan and the ascending order of slots say all of the selection, which is not read.
void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::mma
