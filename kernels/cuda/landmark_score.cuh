// Exact scores of chosen chunks, one chunk a lane: the chains of kernels::score_chunks.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/log_sum.cuh"

namespace ringmark::kernels::cuda {

// One chain of fused multiply-adds in ascending order of channels. `query` has the scale multiplied in.
__device__ inline float chain_product(const float* query, const float* key, std::int32_t head_dim) {
  float product = 0.0f;
  std::int32_t channel = 0;
  if (reinterpret_cast<std::uintptr_t>(key) % 16 == 0) {
#pragma unroll 4
    for (; channel + 4 <= head_dim; channel += 4) {
      const float4 four = *reinterpret_cast<const float4*>(key + channel);
      product = __fmaf_rn(query[channel], four.x, product);
      product = __fmaf_rn(query[channel + 1], four.y, product);
      product = __fmaf_rn(query[channel + 2], four.z, product);
      product = __fmaf_rn(query[channel + 3], four.w, product);
    }
  }
  for (; channel < head_dim; ++channel) product = __fmaf_rn(query[channel], key[channel], product);
  return product;
}

__device__ inline float landmark_score(const LayerShape& shape, const float* record, std::int32_t landmark_head,
                                       const float* query) {
  const std::int64_t vectors = shape.landmark_vectors;
  const float* key = record + landmark_head * vectors * shape.head_dim;
  const float bias = record[shape.landmark_heads * vectors * shape.head_dim + landmark_head];
  if (vectors == 1) return __fadd_rn(chain_product(query, key, shape.head_dim), bias);
  DigitSum sum;
  bool has_nan = false;
  for (std::int64_t v = 0; v < vectors; ++v, key += shape.head_dim) {
    if (key[0] == __builtin_huge_valf()) continue;  // an unused vector
    const float term = __fadd_rn(chain_product(query, key, shape.head_dim), bias);
    has_nan |= term != term;
    sum.add(term);
  }
  return has_nan ? __int_as_float(0x7FFFFFFF) : value_of(sum.log_sum());
}

// One warp: the scores of the chunks that a row chose, for one query head. -inf in unused slots.
//
// chosen  [topk] chunk ids, -1: unused
// query   scratch in shared memory, head_dim floats
// scores  [topk]
__device__ inline void score_slots(const LayerShape& shape, const std::byte* queries, const float* const* records,
                                   std::int64_t row, std::int32_t head, const std::int32_t* chosen, float* query,
                                   float* scores, int lane) {
  const std::int64_t first = (row * shape.heads + head) * shape.head_dim;
  for (std::int32_t channel = lane; channel < shape.head_dim; channel += 32) {
    query[channel] = __fmul_rn(shape.scale, element(queries, shape.dtype, first + channel));
  }
  __syncwarp();
  const std::int32_t landmark_head = head / (shape.heads / shape.landmark_heads);
  for (std::int32_t slot = lane; slot < shape.topk; slot += 32) {
    const std::int32_t chunk = chosen[slot];
    scores[slot] = chunk < 0 ? -__builtin_huge_valf() : landmark_score(shape, records[chunk], landmark_head, query);
  }
  __syncwarp();  // all have read the query
}

}  // namespace ringmark::kernels::cuda
