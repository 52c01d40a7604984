// mean landmarks of 16-bit keys with head_dim 64 or 128: one warp a (chunk, kv head) pair, a lane some consecutive
// channels, many keys on their way at once.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/landmark_build.cuh"

namespace ringmark::kernels::cuda {

constexpr int kMeanWarps = 8;  // a thread block

template <DType kDType, int kDim>
__device__ void build_mean_of_warp(const LandmarkBuild& build, const LandmarkTask& task, int lane) {
  constexpr int kChannels = kDim / 32, kWords = kChannels / 2, kAhead = 16;
  struct alignas(4 * kWords) Words {
    std::uint32_t of[kWords];
  };
  const int first = lane * kChannels;
  const bool swizzled = build.blocks.order == BlockOrder::kSwizzled;
  const int row_bytes = swizzled ? 128 : kDim * 2;
  const std::byte* keys = task.keys + (swizzled ? first / 64 * build.shape.chunk_size * 128 : 0);
  const int within = swizzled ? first % 64 * 2 : first * 2;
  double sums[kChannels] = {};
  for (int slot = task.key_begin; slot < task.key_end; slot += kAhead) {
    Words words[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int place = (slot + i) * row_bytes + (swizzled ? within ^ ((slot + i) % 8 * 16) : within);
      if (slot + i < task.key_end) words[i] = *reinterpret_cast<const Words*>(keys + place);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (slot + i >= task.key_end) break;
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        const float2 two = widen_pair<kDType>(words[i].of[word]);
        sums[2 * word] = __dadd_rn(sums[2 * word], static_cast<double>(two.x));
        sums[2 * word + 1] = __dadd_rn(sums[2 * word + 1], static_cast<double>(two.y));
      }
    }
  }
  const auto count = static_cast<double>(task.key_end - task.key_begin);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) task.key[first + i] = static_cast<float>(__ddiv_rn(sums[i], count));
  if (lane == 0) *task.bias = static_cast<float>(log(count));
}

template <DType kDType, int kDim>
__global__ void __launch_bounds__(32 * kMeanWarps) build_landmark_means_kernel(LandmarkBuild build) {
  const LandmarkCursor at(build, std::int64_t{blockIdx.x} * kMeanWarps + threadIdx.x / 32);
  if (at.slot >= build.count) return;
  const LandmarkTask task = landmark_task(build, at);
  const int lane = threadIdx.x % 32;
  if (task.keys == nullptr) return write_zeros(build, task, lane, 32);
  build_mean_of_warp<kDType, kDim>(build, task, lane);
}

}  // namespace ringmark::kernels::cuda
