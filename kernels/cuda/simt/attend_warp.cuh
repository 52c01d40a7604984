// One warp attends for kHeads query heads of one row that share a kv head. The lanes of the warp hold the channels of
// queries, keys, values and results (lane, lane + 32, ...), so that every row of memory is read in one piece. A step
// takes 32 / kHeads keys: its 32 scores, one a (key, head), come out of one transposing sum, one score a lane.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::simt {

constexpr int kWarps = 4;  // a thread block
constexpr float kInfinity = __builtin_huge_valf();

// Lane l gets the sum over all lanes of values[l].
__device__ inline float transposing_sum(float (&values)[32], int lane) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) {
    const bool odd = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 16 / bit; ++i) {
      const float kept = odd ? values[2 * i + 1] : values[2 * i];
      const float sent = odd ? values[2 * i] : values[2 * i + 1];
      values[i] = kept + __shfl_xor_sync(kAllLanes, sent, bit);
    }
  }
  return values[0];
}

// kParts: channels a lane, at least head_dim / 32. Score lane l belongs to head l % kHeads and key l / kHeads of a
// step.
template <DType kDType, int kParts, int kHeads>
class WarpAttention {
 public:
  static constexpr int kStepKeys = 32 / kHeads;

  // `queries`: kHeads rows of head_dim.
  __device__ WarpAttention(const LayerShape& shape, const std::byte* queries)
      : head_dim_(shape.head_dim), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        query_[head][part] = shape.scale * channel(queries, head, part);
      }
    }
    clear();
  }

  // Forgets all keys.
  __device__ void clear() {
    top_ = -kInfinity;
    sum_ = 0.0f;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) out_[head][part] = 0.0f;
    }
  }

  // Online softmax over slots [begin, end) of a block.
  __device__ void attend(const std::byte* keys, const std::byte* values, int begin, int end) {
    for (int first = begin; first < end; first += kStepKeys) {
      const int count = min(kStepKeys, end - first);
      const float weight = weigh(score(keys, first, count), count);
      add_values(values, first, count, weight);
    }
  }

  // Result channel of a head, not normalised, and what normalises it.
  __device__ float out(int head, int part) const { return out_[head][part]; }
  // Score lane `head` holds the numbers of that head. Every lane gets the answer.
  __device__ float top(int head) const { return __shfl_sync(kAllLanes, top_, head); }
  __device__ float sum(int head) const { return __shfl_sync(kAllLanes, over_keys(sum_, Add{}), head); }

  __device__ int lane() const { return lane_; }
  __device__ int channel_of(int part) const { return lane_ + 32 * part; }
  __device__ bool holds(int part) const { return channel_of(part) < head_dim_; }

 private:
  struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
  };
  struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  };

  __device__ float channel(const std::byte* rows, int row, int part) const {
    return holds(part) ? element<kDType>(rows, std::int64_t{row} * head_dim_ + channel_of(part)) : 0.0f;
  }

  // Over the score lanes of the same head.
  template <class Join>
  __device__ float over_keys(float value, Join join) const {
#pragma unroll
    for (int bit = kHeads; bit < 32; bit *= 2) value = join(value, __shfl_xor_sync(kAllLanes, value, bit));
    return value;
  }

  // Of the lane's key and head; -infinity past the last key.
  __device__ float score(const std::byte* keys, int first, int count) const {
    float products[32];
#pragma unroll
    for (int key = 0; key < kStepKeys; ++key) {
      float channels[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        channels[part] = key < count ? channel(keys, first + key, part) : 0.0f;
      }
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        float product = 0.0f;
#pragma unroll
        for (int part = 0; part < kParts; ++part) product = fmaf(query_[head][part], channels[part], product);
        products[key * kHeads + head] = product;
      }
    }
    const float score = transposing_sum(products, lane_);
    return lane_ / kHeads < count ? score : -kInfinity;
  }

  // exp(score - top) with the largest score so far; what was gathered before is measured from there too.
  __device__ float weigh(float score, int count) {
    const float top = fmaxf(top_, over_keys(score, Max{}));
    const float base = top == -kInfinity ? 0.0f : top;  // -inf - -inf would be NaN
    const float factor = expf(top_ - base);
    const float weight = expf(score - base);
    top_ = top;
    sum_ = sum_ * factor + weight;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const float head_factor = __shfl_sync(kAllLanes, factor, head);
#pragma unroll
      for (int part = 0; part < kParts; ++part) out_[head][part] *= head_factor;
    }
    return weight;
  }

  __device__ void add_values(const std::byte* values, int first, int count, float weight) {
#pragma unroll 4
    for (int key = 0; key < count; ++key) {
      float channels[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) channels[part] = channel(values, first + key, part);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float head_weight = __shfl_sync(kAllLanes, weight, key * kHeads + head);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          out_[head][part] = fmaf(head_weight, channels[part], out_[head][part]);
        }
      }
    }
  }

  int head_dim_;
  int lane_;
  float query_[kHeads][kParts];  // scaled
  float out_[kHeads][kParts];
  float top_;  // of the lane's head
  float sum_;  // of the lane's own keys
};

// The (row, head) pairs of the calling warp: heads [head, head + kHeads) of `row`.
struct WarpTask {
  std::int64_t row;
  std::int32_t head;
  std::int32_t kv_head;
};

template <int kHeads>
__device__ bool warp_task(const LayerShape& shape, RowRange rows, WarpTask& task) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int tasks_per_row = shape.heads / kHeads;
  task.row = rows.begin + index / tasks_per_row;
  task.head = static_cast<std::int32_t>(index % tasks_per_row) * kHeads;
  task.kv_head = task.head / shape.group;
  return task.row < rows.end;
}

inline unsigned int warp_grid(const LayerShape& shape, RowRange rows, int heads) {
  return grid_size(ceil_div(rows.size() * (shape.heads / heads), kWarps));
}

__device__ inline std::int64_t block_index(const LayerShape& shape, std::int32_t chunk, std::int32_t kv_head) {
  return std::int64_t{chunk} * shape.kv_heads + kv_head;
}

// Bytes from K to V of a block.
template <DType kDType>
__device__ std::int64_t value_offset(const LayerShape& shape) {
  return std::int64_t{shape.chunk_size} * shape.head_dim * size_of(kDType);
}

// Calls launch.template operator()<dtype, parts, heads>() with the constants that fit a shape.
template <DType kDType, class Launch>
void with_parts(const LayerShape& shape, Launch launch) {
  const auto with_heads = [&]<int kParts>() {
    if (shape.group % 4 == 0) return launch.template operator()<kDType, kParts, 4>();
    if (shape.group % 2 == 0) return launch.template operator()<kDType, kParts, 2>();
    launch.template operator()<kDType, kParts, 1>();
  };
  if (shape.head_dim <= 64) return with_heads.template operator()<2>();
  if (shape.head_dim <= 128) return with_heads.template operator()<4>();
  with_heads.template operator()<8>();
}

template <class Launch>
void with_constants(const LayerShape& shape, Launch launch) {
  switch (shape.dtype) {
    case DType::kFloat32: return with_parts<DType::kFloat32>(shape, launch);
    case DType::kBfloat16: return with_parts<DType::kBfloat16>(shape, launch);
    case DType::kFloat16: return with_parts<DType::kFloat16>(shape, launch);
  }
}

}  // namespace ringmark::kernels::cuda::simt
