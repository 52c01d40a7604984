// hils landmarks of the usual shapes: 16-bit keys, 64 keys a chunk, head_dim 64 or 128. Memory brings a block's keys in
// about the time that the plain cores take for them, so both must be kept busy: every warp works alone on one
// (chunk, kv head) pair, whose keys it holds in shared memory, without waiting for the others, and asks for what its
// next pair needs early.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/hopper/primitives.cuh"
#include "kernels/cuda/landmark_build.cuh"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {

constexpr int kTileKeys = 64;
constexpr int kMostTileWarps = 16;

template <int kHeads>
struct alignas(4 * kHeads) PerHead {
  float of[kHeads];
};

// Shared memory of one warp. The keys stand as in a swizzled block, halves of 64 channels: lanes that read 16 bytes of
// a key each, and lanes that read the same key, both find all banks free. The rows of `terms` are two numbers longer
// than needed for the same reason.
template <int kDim, int kHeads>
struct alignas(128) LandmarkTile {
  static constexpr int kHalfBytes = kTileKeys * 128;
  static constexpr int kKeyBytes = kDim / 64 * kHalfBytes;

  std::byte keys[kKeyBytes];
  union {
    PerHead<kHeads> queries[kDim];            // scaled
    double terms[2 * kHeads][kTileKeys + 2];  // by head: weights, then weight times depth
    PerHead<kHeads> weights[kTileKeys];
  };
  std::uint64_t keys_arrived;  // mbarrier
};

// Blocks that stand in memory as in the tile come in one bulk copy, where there is such a thing.
template <int kDim, int kHeads>
__device__ void start_keys(BlockOrder order, const std::byte* from, LandmarkTile<kDim, kHeads>& tile, int lane) {
#if __CUDA_ARCH__ >= 900
  if (order == BlockOrder::kSwizzled) {
    if (lane != 0) return;
    hopper::arrive_and_expect(&tile.keys_arrived, tile.kKeyBytes);
    hopper::bulk_copy(tile.keys, from, tile.kKeyBytes, &tile.keys_arrived);
    return;
  }
#endif
  constexpr int kColumns = kDim / 8;
#pragma unroll 8
  for (int i = lane; i < kTileKeys * kColumns; i += 32) {
    const int key = i / kColumns, column = i % kColumns;
    const int swizzled = column / 8 * tile.kHalfBytes + key * 128 + ((column ^ key) % 8) * 16;
    __pipeline_memcpy_async(tile.keys + (order == BlockOrder::kSwizzled ? i * 16 : swizzled), from + i * 16, 16);
  }
  __pipeline_commit();
}

// `phase` counts the tiles of this warp.
template <int kDim, int kHeads>
__device__ void wait_for_keys(BlockOrder order, LandmarkTile<kDim, kHeads>& tile, int phase) {
#if __CUDA_ARCH__ >= 900
  if (order == BlockOrder::kSwizzled) {
    hopper::wait_barrier(&tile.keys_arrived, static_cast<std::uint32_t>(phase % 2));
    return;
  }
#endif
  __pipeline_wait_prior(0);
}

// Asks for lines of 128 bytes, to be found in the second cache level.
template <int kLines>
__device__ void prefetch(const std::byte* from, int lane) {
#pragma unroll
  for (int line = 0; line < kLines; line += 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + (line + lane) * 128));
  }
}

// Queries of kHeads heads on their way to the tile: channels 2 lane, 2 lane + 1 and those 64 above.
template <DType kDType, int kDim, int kHeads>
struct QueryWords {
  std::uint32_t of[kDim / 64][kHeads];

  __device__ void load(const std::byte* from, int lane) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(from) + lane;
#pragma unroll
    for (int part = 0; part < kDim / 64; ++part) {
#pragma unroll
      for (int head = 0; head < kHeads; ++head) of[part][head] = words[head * (kDim / 2) + part * 32];
    }
  }
  __device__ void store(float scale, PerHead<kHeads>* queries, int lane) const {
#pragma unroll
    for (int part = 0; part < kDim / 64; ++part) {
      PerHead<kHeads> low, high;
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float2 both = widen_pair<kDType>(of[part][head]);
        low.of[head] = __fmul_rn(both.x, scale);
        high.of[head] = __fmul_rn(both.y, scale);
      }
      queries[part * 64 + 2 * lane] = low;
      queries[part * 64 + 2 * lane + 1] = high;
    }
  }
};

// Logits of keys lane and lane + 32.
template <DType kDType, int kDim, int kHeads>
__device__ void multiply_keys(const LandmarkTile<kDim, kHeads>& tile, int lane, float (&logits)[2][kHeads]) {
#pragma unroll
  for (int head = 0; head < kHeads; ++head) logits[0][head] = logits[1][head] = 0.0f;
  const int first_column = lane * 128 + lane % 8 * 16;
#pragma unroll 4
  for (int column = 0; column < kDim / 8; ++column) {
    const std::byte* place = tile.keys + column / 8 * tile.kHalfBytes + (first_column ^ (column % 8 * 16));
    const uint4 near = *reinterpret_cast<const uint4*>(place), far = *reinterpret_cast<const uint4*>(place + 32 * 128);
    const std::uint32_t words[2][4] = {{near.x, near.y, near.z, near.w}, {far.x, far.y, far.z, far.w}};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const PerHead<kHeads> low = tile.queries[column * 8 + 2 * word];
      const PerHead<kHeads> high = tile.queries[column * 8 + 2 * word + 1];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float2 key = widen_pair<kDType>(words[part][word]);
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          logits[part][head] = __fmaf_rn(low.of[head], key.x, logits[part][head]);
        }
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          logits[part][head] = __fmaf_rn(high.of[head], key.y, logits[part][head]);
        }
      }
    }
  }
}

// Logits become normalised weights, which go to the tile; writes the biases. The CPU adds the fp64 terms of a head in
// ascending order of keys, so one lane a sum does the same, over terms that all lanes have prepared. What a key that
// does not count adds is exactly zero.
template <int kDim, int kHeads>
__device__ void weigh_keys(LandmarkTile<kDim, kHeads>& tile, const LandmarkTask& task, int lane,
                           const float (&logits)[2][kHeads], float* bias) {
  constexpr float kInfinity = __builtin_huge_valf();
  float weights[2][kHeads];
  __syncwarp();  // all have read the queries
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    float logit[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int key = lane + 32 * part;
      logit[part] = task.key_begin <= key && key < task.key_end ? logits[part][head] : -kInfinity;
    }
    const float largest = largest_of_warp(fmaxf(logit[0], logit[1]));
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float weight = exp_of_negative(__fsub_rn(logit[part], largest));
      const double depth = static_cast<double>(__fsub_rn(largest, logit[part]));
      weights[part][head] = weight;
      tile.terms[head][lane + 32 * part] = static_cast<double>(weight);
      tile.terms[kHeads + head][lane + 32 * part] = weight > 0.0f ? __dmul_rn(static_cast<double>(weight), depth) : 0.0;
    }
  }
  __syncwarp();
  double total = 0.0;
  const double* terms = tile.terms[lane % (2 * kHeads)];
#pragma unroll 16
  for (int key = 0; key < kTileKeys; key += 2) {
    const double2 two = *reinterpret_cast<const double2*>(terms + key);
    total = __dadd_rn(__dadd_rn(total, two.x), two.y);
  }
  const double reciprocal = __drcp_rn(total);
  const double log_of_total = log(lane < kHeads ? total : static_cast<double>(task.key_end - task.key_begin));
  const double depth = __shfl_down_sync(kAllLanes, total, kHeads);
  const double log_of_count = __shfl_sync(kAllLanes, log_of_total, kHeads);
  if (lane < kHeads) bias[lane] = tangent_bias(log_of_total, depth, reciprocal, log_of_count);
  PerHead<kHeads> normal[2];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const double factor = __shfl_sync(kAllLanes, reciprocal, head);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      normal[part].of[head] = static_cast<float>(__dmul_rn(static_cast<double>(weights[part][head]), factor));
    }
  }
  __syncwarp();  // all have read the terms
  tile.weights[lane] = normal[0];
  tile.weights[lane + 32] = normal[1];
  __syncwarp();
}

// The lane's channels of kHeads landmark keys: kChannels consecutive ones.
template <DType kDType, int kDim, int kHeads>
class MixedKeys {
 public:
  static constexpr int kChannels = kDim / 32;
  static constexpr int kWords = kChannels / 2;

  __device__ MixedKeys(const LandmarkTile<kDim, kHeads>& tile, int lane)
      : tile_(tile), first_channel_(lane * kChannels) {
#pragma unroll
    for (int channel = 0; channel < kChannels; ++channel) {
      // x + -0 is x for every x, so the chain starts with the first product itself.
#pragma unroll
      for (int head = 0; head < kHeads; ++head) mixed_[channel][head] = -0.0f;
    }
  }

  // Keys in ascending order.
  __device__ void add(int begin, int end) {
    const int half = first_channel_ / 64 * tile_.kHalfBytes, within = first_channel_ % 64 * 2;
    int offset[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) offset[i] = half + i * 128 + (within ^ (i * 16));
    for (int eight = begin / 8; eight * 8 < end; ++eight) {
      const std::byte* keys = tile_.keys + eight * 8 * 128;
      if (begin <= eight * 8 && eight * 8 + 8 <= end) {
#pragma unroll
        for (int i = 0; i < 8; ++i) add_key(keys + offset[i], eight * 8 + i);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (begin <= eight * 8 + i && eight * 8 + i < end) add_key(keys + offset[i], eight * 8 + i);
        }
      }
    }
  }

  // A record is a multiple of kHeads numbers long, and so are the pieces that are written here.
  __device__ void write(float* key) const {
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int channel = 0; channel < kChannels; channel += kPiece) {
        PerHead<kPiece> piece;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) piece.of[i] = mixed_[channel + i][head];
        *reinterpret_cast<PerHead<kPiece>*>(key + head * kDim + first_channel_ + channel) = piece;
      }
    }
  }

 private:
  static constexpr int kPiece = kHeads < kChannels ? kHeads : kChannels;

  struct alignas(4 * kWords) Words {
    std::uint32_t of[kWords];
  };

  __device__ void add_key(const std::byte* place, int key) {
    const PerHead<kHeads> weights = tile_.weights[key];
    const Words words = *reinterpret_cast<const Words*>(place);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const float2 two = widen_pair<kDType>(words.of[word]);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        mixed_[2 * word][head] = __fmaf_rn(weights.of[head], two.x, mixed_[2 * word][head]);
        mixed_[2 * word + 1][head] = __fmaf_rn(weights.of[head], two.y, mixed_[2 * word + 1][head]);
      }
    }
  }

  const LandmarkTile<kDim, kHeads>& tile_;
  int first_channel_;
  float mixed_[kChannels][kHeads];
};

// `words` holds the task's first queries, and then those of the next task.
template <DType kDType, int kDim, int kHeads>
__device__ void build_tile(const LandmarkBuild& build, const LandmarkTask& task, const LandmarkTask& next, int phase,
                           QueryWords<kDType, kDim, kHeads>& words, LandmarkTile<kDim, kHeads>& tile, int lane) {
  for (int head = 0; head < build.shape.group; head += kHeads) {
    words.store(build.shape.scale, tile.queries, lane);
    if (head == 0) wait_for_keys(build.blocks.order, tile, phase);
    __syncwarp();
    float logits[2][kHeads];
    multiply_keys<kDType, kDim, kHeads>(tile, lane, logits);
    if (head + kHeads < build.shape.group) {
      words.load(task.query + (head + kHeads) * kDim * 2, lane);
    } else if (next.keys != nullptr) {
      prefetch<kTileKeys * kDim * 2 / 128>(next.keys, lane);
      words.load(next.query, lane);
    }
    weigh_keys<kDim, kHeads>(tile, task, lane, logits, task.bias + head);
    MixedKeys<kDType, kDim, kHeads> mixed(tile, lane);
    mixed.add(task.key_begin, task.key_end);
    mixed.write(task.key + std::int64_t{head} * kDim);
    __syncwarp();  // all have read the tile
  }
}

// One thread block a processor, with as many warps as have room for a tile.
template <DType kDType, int kDim, int kHeads>
__global__ void __launch_bounds__(32 * kMostTileWarps, 1) build_landmark_tiles_kernel(LandmarkBuild build) {
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  auto& tile = reinterpret_cast<LandmarkTile<kDim, kHeads>*>(shared)[warp];
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    hopper::init_barrier(&tile.keys_arrived, 1);
    hopper::fence_barrier_init();
  }
  __syncwarp();
#endif
  const LandmarkCursor step(build, std::int64_t{gridDim.x} * warps);
  LandmarkCursor at(build, std::int64_t{blockIdx.x} * warps + warp);
  if (at.slot >= build.count) return;
  QueryWords<kDType, kDim, kHeads> words;
  LandmarkTask task = landmark_task(build, at);
  if (task.keys != nullptr) words.load(task.query, lane);
  for (int phase = 0; at.slot < build.count;) {
    if (task.keys != nullptr) start_keys(build.blocks.order, task.keys, tile, lane);
    LandmarkTask next;
    at.advance(step, build);
    if (at.slot < build.count) next = landmark_task(build, at);
    if (task.keys != nullptr) {
      build_tile(build, task, next, phase++, words, tile, lane);
    } else {
      write_zeros(build, task, lane, 32);
      if (next.keys != nullptr) words.load(next.query, lane);
    }
    task = next;
  }
}

}  // namespace ringmark::kernels::cuda
