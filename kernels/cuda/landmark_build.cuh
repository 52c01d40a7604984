// What the kernels that build landmarks share: the task of one (chunk, kv head) pair.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/landmarks.h"
#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// The arguments of build_landmarks.
struct LandmarkBuild {
  LayerShape shape;
  const ChunkGeometry* chunk_geometry;
  DeviceBlocks blocks;
  const std::int32_t* chunks;
  const std::uint8_t* has_landmark;
  const std::int64_t* landmark_rows;
  std::int64_t count;
  const std::byte* queries;
  float* records;
  std::int64_t record_floats;
  std::int64_t bias_offset;
  std::int32_t heads_per_kv_head;  // landmark heads
};

// Walks the (chunk, kv head) pairs: `slot` counts the listed chunks.
struct LandmarkCursor {
  std::int64_t slot;
  std::int32_t kv_head;

  __device__ LandmarkCursor(const LandmarkBuild& build, std::int64_t index)
      : slot(index / build.shape.kv_heads), kv_head(static_cast<std::int32_t>(index % build.shape.kv_heads)) {}
  __device__ void advance(const LandmarkCursor& by, const LandmarkBuild& build) {
    slot += by.slot;
    kv_head += by.kv_head;
    if (kv_head < build.shape.kv_heads) return;
    kv_head -= build.shape.kv_heads;
    ++slot;
  }
};

// The landmark heads of one kv head of a chunk.
struct LandmarkTask {
  const std::byte* keys = nullptr;   // first key of the block; null where the chunk has no landmark
  const std::byte* query = nullptr;  // landmark query of the kv head's first query head (hils)
  int key_begin = 0;                 // ordinary keys: slots [key_begin, key_end)
  int key_end = 0;
  float* key = nullptr;   // of the first landmark head, in the record
  float* bias = nullptr;  // of the first landmark head, in the record
};

// Nothing in here waits for has_landmark: all is loaded at once.
__device__ inline LandmarkTask landmark_task(const LandmarkBuild& build, const LandmarkCursor& at) {
  const LayerShape& shape = build.shape;
  const int first_head = at.kv_head * build.heads_per_kv_head;
  const std::int32_t chunk = build.chunks[at.slot];
  const ChunkGeometry geometry = build.chunk_geometry[chunk];
  const std::byte* keys = build.blocks.table[std::int64_t{chunk} * shape.kv_heads + at.kv_head];
  LandmarkTask task;
  float* record = build.records + at.slot * build.record_floats;
  task.key = record + std::int64_t{first_head} * shape.landmark_vectors * shape.head_dim;
  task.bias = record + build.bias_offset + first_head;
  task.key_begin = geometry.key_begin;
  task.key_end = geometry.key_end;
  task.keys = build.has_landmark[at.slot] ? keys : nullptr;
  if (shape.scorer == Scorer::kHils) {
    const std::int64_t row = build.landmark_rows[at.slot];
    const int element_bytes = shape.dtype == DType::kFloat32 ? 4 : 2;
    task.query = build.queries + (row * shape.heads + at.kv_head * shape.group) * shape.head_dim * element_bytes;
  }
  return task;
}

// The record of a chunk without landmark: `threads` threads, each with its number.
__device__ inline void write_zeros(const LandmarkBuild& build, const LandmarkTask& task, int thread, int threads) {
  const int heads = build.heads_per_kv_head;
  const std::int64_t floats = std::int64_t{heads} * build.shape.landmark_vectors * build.shape.head_dim;
  for (std::int64_t i = thread; i < floats; i += threads) task.key[i] = 0.0f;
  for (int i = thread; i < heads; i += threads) task.bias[i] = 0.0f;
}

// The end of kernels/cpu/build_landmarks.cpp's build_tangent, in its fp64 operations: the entropy of the weights, not
// above that of equal ones.
__device__ inline float tangent_bias(double log_of_sum, double depth, double reciprocal, double log_of_count) {
  const double entropy = __dadd_rn(log_of_sum, __dmul_rn(depth, reciprocal));
  return static_cast<float>(entropy < 0.0 ? 0.0 : log_of_count < entropy ? log_of_count : entropy);
}

}  // namespace ringmark::kernels::cuda
