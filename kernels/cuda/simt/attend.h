// Attention on the plain cores in fp32: any head_dim, chunk size, group and dtype. What runs the shapes that the tensor
// core kernels do not take, and what those are checked against. Blocks in plain order. Every row walks its keys in
// ascending order. Contracts: kernels/cuda/attend.h.
#pragma once

#include "kernels/cuda/attend.h"

namespace ringmark::kernels::cuda::simt {

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream);

// The plan is not looked at.
void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::simt
