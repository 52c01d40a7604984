// Landmarks of any shape and scorer, one thread block a (chunk, kv head) pair, and the choice between this kernel and
// those of the usual shapes. Sums run in the order of kernels/cpu/build_landmarks.cpp, whose bits these are.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/landmark_build.cuh"
#include "kernels/cuda/landmark_means.cuh"
#include "kernels/cuda/landmark_tiles.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kHeads = 4;  // query heads at a time, one a warp where they are weighed
constexpr int kThreads = 32 * kHeads;
constexpr int kKeys = 32;                          // keys in shared memory at a time
constexpr int kChannels = kMaxHeadDim / kThreads;  // of a landmark key, a thread
constexpr float kInfinity = __builtin_huge_valf();

// Shared memory, all fp32. The rows of `keys` have an odd length: threads that read the same channel of consecutive
// keys find all banks free.
struct Scratch {
  float* keys;     // [kKeys][stride]
  float* queries;  // [kHeads][head_dim], scaled
  float* logits;   // [kHeads][chunk_size]
  float* weights;  // [kHeads][chunk_size]
  int stride;

  static constexpr int stride_of(int head_dim) { return head_dim | 1; }
  static int bytes(const LayerShape& shape) {
    return 4 * (kKeys * stride_of(shape.head_dim) + kHeads * (shape.head_dim + 2 * shape.chunk_size));
  }
  __device__ Scratch(float* shared, const LayerShape& shape)
      : keys(shared),
        queries(keys + kKeys * stride_of(shape.head_dim)),
        logits(queries + kHeads * shape.head_dim),
        weights(logits + kHeads * shape.chunk_size),
        stride(stride_of(shape.head_dim)) {}
};

__device__ float key_element(const LandmarkBuild& build, const LandmarkTask& task, int slot, int channel) {
  const LayerShape& shape = build.shape;
  const std::int64_t index = build.blocks.order == BlockOrder::kSwizzled
                                 ? swizzled_offset(shape.chunk_size, slot, channel) / 2
                                 : std::int64_t{slot} * shape.head_dim + channel;
  return element(task.keys, shape.dtype, index);
}

// Keys [first, first + count) of the ordinary ones.
__device__ void load_keys(const LandmarkBuild& build, const LandmarkTask& task, int first, int count,
                          const Scratch& scratch) {
  for (int key = threadIdx.x / 32; key < count; key += kThreads / 32) {
    for (int channel = threadIdx.x % 32; channel < build.shape.head_dim; channel += 32) {
      scratch.keys[key * scratch.stride + channel] = key_element(build, task, task.key_begin + first + key, channel);
    }
  }
}

__device__ void multiply_keys(const LandmarkBuild& build, const LandmarkTask& task, int first_head, int heads,
                              const Scratch& scratch) {
  const LayerShape& shape = build.shape;
  for (int i = threadIdx.x; i < heads * shape.head_dim; i += kThreads) {
    scratch.queries[i] =
        __fmul_rn(element(task.query, shape.dtype, std::int64_t{first_head} * shape.head_dim + i), shape.scale);
  }
  const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* query = scratch.queries + head * shape.head_dim;
  const int count = task.key_end - task.key_begin;
  for (int first = 0; first < count; first += kKeys) {
    load_keys(build, task, first, min(kKeys, count - first), scratch);
    __syncthreads();
    if (head < heads && first + lane < count) {
      const float* key = scratch.keys + lane * scratch.stride;
      float logit = 0.0f;
      for (int channel = 0; channel < shape.head_dim; ++channel) logit = __fmaf_rn(query[channel], key[channel], logit);
      scratch.logits[head * shape.chunk_size + first + lane] = logit;
    }
    __syncthreads();
  }
}

// One warp: logits of a head become normalised weights. Returns the bias.
__device__ float weigh_keys(const float* logits, float* weights, int count, int lane) {
  float largest = -kInfinity;
  for (int key = lane; key < count; key += 32) largest = fmaxf(largest, logits[key]);
  largest = largest_of_warp(largest);
  for (int key = lane; key < count; key += 32) weights[key] = exp_of_negative(__fsub_rn(logits[key], largest));
  __syncwarp();
  double total = 0.0;  // lane 0: of the weights; lane 1: of weight times depth
  for (int key = 0; key < count && lane < 2; ++key) {
    const double weight = static_cast<double>(weights[key]);
    const double depth = static_cast<double>(__fsub_rn(largest, logits[key]));
    const double weighed = weight > 0.0 ? __dmul_rn(weight, depth) : 0.0;
    total = __dadd_rn(total, lane == 0 ? weight : weighed);
  }
  const double sum = __shfl_sync(kAllLanes, total, 0), depth = __shfl_sync(kAllLanes, total, 1);
  const double reciprocal = __drcp_rn(sum);
  for (int key = lane; key < count; key += 32) {
    weights[key] = static_cast<float>(__dmul_rn(static_cast<double>(weights[key]), reciprocal));
  }
  return tangent_bias(log(sum), depth, reciprocal, log(static_cast<double>(count)));
}

__device__ void mix_keys(const LandmarkBuild& build, const LandmarkTask& task, int heads, const Scratch& scratch,
                         float* out) {
  const int head_dim = build.shape.head_dim;
  float mixed[kChannels][kHeads];
  for (auto& channel : mixed) {
    // x + -0 is x for every x, so the chain starts with the first product itself.
    for (float& value : channel) value = -0.0f;
  }
  const int count = task.key_end - task.key_begin;
  for (int first = 0; first < count; first += kKeys) {
    const int here = min(kKeys, count - first);
    load_keys(build, task, first, here, scratch);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int channel = threadIdx.x + i * kThreads;
      if (channel >= head_dim) continue;
      for (int key = 0; key < here; ++key) {
        const float value = scratch.keys[key * scratch.stride + channel];
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          if (head >= heads) continue;
          const float weight = scratch.weights[head * build.shape.chunk_size + first + key];
          mixed[i][head] = __fmaf_rn(weight, value, mixed[i][head]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const int channel = threadIdx.x + i * kThreads;
    if (channel >= head_dim) continue;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      if (head < heads) out[std::int64_t{head} * head_dim + channel] = mixed[i][head];
    }
  }
}

__device__ void build_tangents(const LandmarkBuild& build, const LandmarkTask& task, const Scratch& scratch) {
  const LayerShape& shape = build.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int first = 0; first < shape.group; first += kHeads) {
    const int heads = min(kHeads, shape.group - first);
    multiply_keys(build, task, first, heads, scratch);
    if (warp < heads) {
      const int row = warp * shape.chunk_size;
      const float bias = weigh_keys(scratch.logits + row, scratch.weights + row, task.key_end - task.key_begin, lane);
      if (lane == 0) task.bias[first + warp] = bias;
    }
    __syncthreads();
    mix_keys(build, task, heads, scratch, task.key + std::int64_t{first} * shape.head_dim);
  }
}

__device__ void build_mean(const LandmarkBuild& build, const LandmarkTask& task) {
  const auto count = static_cast<double>(task.key_end - task.key_begin);
  for (int channel = threadIdx.x; channel < build.shape.head_dim; channel += kThreads) {
    double sum = 0.0;
#pragma unroll 8
    for (int slot = task.key_begin; slot < task.key_end; ++slot) {
      sum = __dadd_rn(sum, static_cast<double>(key_element(build, task, slot, channel)));
    }
    task.key[channel] = static_cast<float>(__ddiv_rn(sum, count));
  }
  if (threadIdx.x == 0) *task.bias = static_cast<float>(log(count));
}

// oracle: the keys themselves; a first element of infinity marks the vectors that are none.
__device__ void copy_keys(const LandmarkBuild& build, const LandmarkTask& task) {
  const LayerShape& shape = build.shape;
  const int count = task.key_end - task.key_begin;
  for (int vector = threadIdx.x / 32; vector < shape.landmark_vectors; vector += kThreads / 32) {
    for (int channel = threadIdx.x % 32; channel < shape.head_dim; channel += 32) {
      const float unused = channel == 0 ? kInfinity : 0.0f;
      task.key[std::int64_t{vector} * shape.head_dim + channel] =
          vector < count ? key_element(build, task, task.key_begin + vector, channel) : unused;
    }
  }
  if (threadIdx.x == 0) *task.bias = 0.0f;
}

__global__ void __launch_bounds__(kThreads) build_landmarks_kernel(LandmarkBuild build) {
  extern __shared__ float shared_floats[];
  const Scratch scratch(shared_floats, build.shape);
  const LandmarkCursor step(build, gridDim.x);
  for (LandmarkCursor at(build, blockIdx.x); at.slot < build.count; at.advance(step, build)) {
    const LandmarkTask task = landmark_task(build, at);
    if (task.keys == nullptr) {
      write_zeros(build, task, threadIdx.x, kThreads);
    } else if (build.shape.scorer == Scorer::kHils) {
      build_tangents(build, task, scratch);
    } else if (build.shape.scorer == Scorer::kMean) {
      build_mean(build, task);
    } else {
      copy_keys(build, task);
    }
  }
}

void launch_any(const LandmarkBuild& build, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 20;
  const int bytes = build.shape.scorer == Scorer::kHils ? Scratch::bytes(build.shape) : 0;
  ringmark::cuda::check(
      cudaFuncSetAttribute(build_landmarks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "give build_landmarks its shared memory");
  const std::int64_t tasks = build.count * build.shape.kv_heads;
  build_landmarks_kernel<<<grid_size(std::min(tasks, kMostBlocks)), kThreads, static_cast<std::size_t>(bytes),
                           stream>>>(build);
  ringmark::cuda::check_launch("build_landmarks");
}

template <DType kDType, int kDim, int kTileHeads>
void launch_tiles(const LandmarkBuild& build, cudaStream_t stream) {
  constexpr int kTileBytes = sizeof(LandmarkTile<kDim, kTileHeads>);
  const auto kernel = build_landmark_tiles_kernel<kDType, kDim, kTileHeads>;
  int device = 0, processors = 0, room = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                        "ask for the number of processors");
  ringmark::cuda::check(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                        "ask for the shared memory of a thread block");
  const int warps = std::min(kMostTileWarps, room / kTileBytes);
  ringmark::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, warps * kTileBytes),
                        "give build_landmarks its shared memory");
  const std::int64_t tasks = build.count * build.shape.kv_heads;
  const auto blocks = grid_size(std::min<std::int64_t>(processors, ceil_div(tasks, warps)));
  kernel<<<blocks, static_cast<unsigned int>(32 * warps), static_cast<std::size_t>(warps * kTileBytes), stream>>>(
      build);
}

template <DType kDType, int kDim>
void launch_usual(const LandmarkBuild& build, cudaStream_t stream) {
  if (build.shape.scorer == Scorer::kMean) {
    const std::int64_t tasks = build.count * build.shape.kv_heads;
    build_landmark_means_kernel<kDType, kDim>
        <<<grid_size(ceil_div(tasks, kMeanWarps)), 32 * kMeanWarps, 0, stream>>>(build);
  } else if (build.shape.group % 4 == 0) {
    launch_tiles<kDType, kDim, 4>(build, stream);
  } else if (build.shape.group % 2 == 0) {
    launch_tiles<kDType, kDim, 2>(build, stream);
  } else {
    launch_tiles<kDType, kDim, 1>(build, stream);
  }
  ringmark::cuda::check_launch("build_landmarks");
}

template <DType kDType>
void launch_usual(const LandmarkBuild& build, cudaStream_t stream) {
  build.shape.head_dim == 64 ? launch_usual<kDType, 64>(build, stream) : launch_usual<kDType, 128>(build, stream);
}

bool is_usual(const LayerShape& shape) {
  return size_of(shape.dtype) == 2 && (shape.head_dim == 64 || shape.head_dim == 128) &&
         (shape.scorer == Scorer::kMean || (shape.scorer == Scorer::kHils && shape.chunk_size == kTileKeys));
}

}  // namespace

void build_landmarks(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                     const std::int32_t* chunks, const std::uint8_t* has_landmark, const std::int64_t* landmark_rows,
                     std::int64_t count, const std::byte* queries, float* records, cudaStream_t stream) {
  if (count == 0 || shape.landmark_heads == 0) return;
  const LandmarkShape landmark = shape.landmark_shape();
  const LandmarkBuild build{shape,
                            geometry.chunks,
                            blocks,
                            chunks,
                            has_landmark,
                            landmark_rows,
                            count,
                            queries,
                            records,
                            landmark.record_floats(),
                            landmark.bias_offset(),
                            shape.landmark_heads / shape.kv_heads};
  if (!is_usual(shape)) return launch_any(build, stream);
  shape.dtype == DType::kBfloat16 ? launch_usual<DType::kBfloat16>(build, stream)
                                  : launch_usual<DType::kFloat16>(build, stream);
}

}  // namespace ringmark::kernels::cuda
