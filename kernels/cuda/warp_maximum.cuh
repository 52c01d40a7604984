// The largest value over the 32 lanes of a warp, in one instruction.
#pragma once

#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {

// Of values without NaN.
__device__ inline float largest_of_warp(float value) { return value_at(__reduce_max_sync(kAllLanes, order_of(value))); }

}  // namespace ringmark::kernels::cuda
