// From the shape of a layer, known at run time, to the template arguments of a kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/cuda/error.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda::mma {

// Calls launch.operator()<Element, kHeadDim>(). Only for shapes of has_tensor_kernels().
template <class Launch>
void with_shape(const LayerShape& shape, const Launch& launch) {
  const auto with_dim = [&]<class Element>() {
    if (shape.head_dim == 64) {
      launch.template operator()<Element, 64>();
    } else {
      launch.template operator()<Element, 128>();
    }
  };
  if (shape.dtype == DType::kBfloat16) {
    with_dim.template operator()<__nv_bfloat16>();
  } else {
    with_dim.template operator()<__half>();
  }
}

// Launches a kernel that uses `shared_bytes` of dynamic shared memory, and checks the launch.
template <class Kernel, class Arguments>
void launch_kernel(const char* name, Kernel* kernel, std::int64_t blocks, int threads, int shared_bytes,
                   cudaStream_t stream, const Arguments& arguments) {
  ringmark::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), name);
  kernel<<<grid_size(blocks), static_cast<unsigned>(threads), static_cast<std::size_t>(shared_bytes), stream>>>(
      arguments);
  ringmark::cuda::check_launch(name);
}

}  // namespace ringmark::kernels::cuda::mma
