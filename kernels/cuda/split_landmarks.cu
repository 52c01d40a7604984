// Landmark records of all chunks become tiles of two-term 16-bit operands. Maxima over the chunks are taken by atomics
// on the bits of floats that are not negative: the result does not depend on their order.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/landmarks.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kTileChunks = LandmarkTiles::kTileChunks;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTopExponent = 12;  // the largest scaled element is in [2^12, 2^13), with room below 65504
constexpr float kInfinity = __builtin_huge_valf();

struct Split {
  const float* const* records;
  LandmarkTiles tiles;
  std::int32_t chunk_count;
  std::int32_t heads;
  std::int32_t head_dim;

  // Null past the last chunk, too.
  __device__ const float* record(std::int64_t chunk) const { return chunk < chunk_count ? records[chunk] : nullptr; }
};

__device__ void raise(float* most, float value) { atomicMax(reinterpret_cast<int*>(most), __float_as_int(value)); }

// A sum of squares, and a root of it, that are not below the exact ones.
__device__ float sum_of_warp_up(float value) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) value = __fadd_ru(value, __shfl_xor_sync(kAllLanes, value, bit));
  return value;
}

// exponent_scale becomes the largest |element| of the head. One thread block a (head, tile).
__global__ void __launch_bounds__(kThreads) find_largest_kernel(Split split) {
  const int head = blockIdx.x % split.heads;
  const std::int64_t first = std::int64_t{blockIdx.x} / split.heads * kTileChunks;
  float largest = 0.0f;
  for (int chunk = threadIdx.x / 32; chunk < kTileChunks; chunk += kWarps) {
    const float* record = split.record(first + chunk);
    if (record == nullptr) continue;
    const float* key = record + std::int64_t{head} * split.head_dim;
#pragma unroll 4
    for (int channel = threadIdx.x % 32; channel < split.head_dim; channel += 32) {
      largest = fmaxf(largest, fabsf(key[channel]));
    }
  }
  largest = largest_of_warp(largest);
  if (threadIdx.x % 32 == 0) raise(split.tiles.exponent_scale + head, largest);
}

// exponent_scale becomes 2^exponent.
__global__ void choose_scale_kernel(float* exponent_scale, std::int32_t heads) {
  const int head = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (head >= heads) return;
  const float largest = exponent_scale[head];
  // ilogbf of 0 or infinity is no exponent; the clamp keeps 2^exponent and its reciprocal normal numbers.
  const bool usable = largest > 0.0f && largest < kInfinity;
  const int exponent = usable ? min(max(ilogbf(largest) - kTopExponent, -126), 126) : 0;
  exponent_scale[head] = ldexpf(1.0f, exponent);
}

struct Terms {
  float high;
  float low;
  float rest;  // exact, while nothing overflows

  __device__ explicit Terms(float value) {
    high = rounded(value);
    const float left = __fsub_rn(value, high);
    low = rounded(left);
    rest = __fsub_rn(left, low);
  }
  static __device__ float rounded(float value) { return __half2float(__float2half_rn(value)); }
  // Of values that are representable.
  static __device__ std::uint32_t pair(float first, float second) {
    const __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
};

// Channels 64 half + 2 lane and the next of one landmark, zero where there is none; its bias in lane 0.
template <int kHalves>
struct LandmarkPart {
  float2 channels[kHalves];
  float bias;

  __device__ void load(const Split& split, std::int64_t chunk, int head, int lane) {
    const float* record = split.record(chunk);
    const float* key = record + std::int64_t{head} * split.head_dim + 2 * lane;
    bias = -kInfinity;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) channels[half] = {0.0f, 0.0f};
    if (record == nullptr) return;
    if (lane == 0) bias = record[std::int64_t{split.heads} * split.head_dim + head];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) channels[half] = {key[half * 64], key[half * 64 + 1]};
  }
};

// Sums of squares over the lane's channels of one landmark.
struct Squares {
  float key = 0.0f;
  float rest = 0.0f;
};

// Each term of two channels makes one word of the tile.
__device__ void split_pair(const float2& pair, float inverse, std::byte* high, std::byte* low, Squares& squares) {
  const Terms a(__fmul_rn(pair.x, inverse)), b(__fmul_rn(pair.y, inverse));
  *reinterpret_cast<std::uint32_t*>(high) = Terms::pair(a.high, b.high);
  *reinterpret_cast<std::uint32_t*>(low) = Terms::pair(a.low, b.low);
  squares.key = __fmaf_ru(pair.x, pair.x, __fmaf_ru(pair.y, pair.y, squares.key));
  squares.rest = __fmaf_ru(a.rest, a.rest, __fmaf_ru(b.rest, b.rest, squares.rest));
}

// One thread block a (head, tile), one warp a landmark; kAhead landmarks of a warp are on their way at once.
template <int kHalves>
__global__ void __launch_bounds__(kThreads) split_landmarks_kernel(Split split) {
  constexpr int kAhead = 4, kHalfBytes = kTileChunks * 128, kTermBytes = kHalves * kHalfBytes;
  const int head = blockIdx.x % split.heads, lane = threadIdx.x % 32;
  const std::int64_t tile = blockIdx.x / split.heads;
  const std::int64_t place = head * std::int64_t{split.tiles.tiles} + tile;
  std::byte* terms = split.tiles.terms + place * 2 * kTermBytes;
  const float scale = split.tiles.exponent_scale[head], inverse = 1.0f / scale;
  float key_norm = 0.0f, residual_norm = 0.0f;
  for (int first = threadIdx.x / 32; first < kTileChunks; first += kAhead * kWarps) {
    LandmarkPart<kHalves> parts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) parts[i].load(split, tile * kTileChunks + first + i * kWarps, head, lane);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int chunk = first + i * kWarps;
      std::byte* row = terms + chunk * 128 + ((lane / 4) ^ (chunk % 8)) * 16 + lane % 4 * 4;
      Squares squares;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        std::byte* high = row + half * kHalfBytes;
        split_pair(parts[i].channels[half], inverse, high, high + kTermBytes, squares);
      }
      key_norm = fmaxf(key_norm, __fsqrt_ru(sum_of_warp_up(squares.key)));
      residual_norm = fmaxf(residual_norm, __fmul_ru(scale, __fsqrt_ru(sum_of_warp_up(squares.rest))));
      if (lane == 0) split.tiles.bias[place * kTileChunks + chunk] = parts[i].bias;
    }
  }
  if (lane == 0) {
    raise(split.tiles.key_norm + head, key_norm);
    raise(split.tiles.residual_norm + head, residual_norm);
  }
}

void clear(float* values, std::int32_t count, cudaStream_t stream) {
  ringmark::cuda::check(cudaMemsetAsync(values, 0, static_cast<std::size_t>(count) * sizeof(float), stream),
                        "clear landmark norms");
}

}  // namespace

void split_landmarks(const LayerShape& shape, const float* const* records, const LandmarkTiles& tiles,
                     cudaStream_t stream) {
  if (shape.landmark_heads == 0 || tiles.tiles == 0) return;
  require(size_of(shape.dtype) == 2 && shape.landmark_vectors == 1 && (shape.head_dim == 64 || shape.head_dim == 128),
          "landmarks of 16-bit layers of head_dim 64 or 128 are split");
  const Split split{records, tiles, shape.chunk_count, shape.landmark_heads, shape.head_dim};
  const unsigned int blocks = grid_size(std::int64_t{tiles.tiles} * shape.landmark_heads);
  clear(tiles.exponent_scale, shape.landmark_heads, stream);
  clear(tiles.key_norm, shape.landmark_heads, stream);
  clear(tiles.residual_norm, shape.landmark_heads, stream);
  find_largest_kernel<<<blocks, kThreads, 0, stream>>>(split);
  choose_scale_kernel<<<grid_size(ceil_div(shape.landmark_heads, kThreads)), kThreads, 0, stream>>>(
      tiles.exponent_scale, shape.landmark_heads);
  if (split.head_dim == 64) {
    split_landmarks_kernel<1><<<blocks, kThreads, 0, stream>>>(split);
  } else {
    split_landmarks_kernel<2><<<blocks, kThreads, 0, stream>>>(split);
  }
  ringmark::cuda::check_launch("split_landmarks");
}

}  // namespace ringmark::kernels::cuda
