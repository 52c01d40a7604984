// Landmarks on the device: records as on the CPU (kernels/landmarks.h), bit for bit, and the tables that the tensor
// core scorers read.
#pragma once

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// Writes the record of every listed chunk that has a landmark (has_landmark[n] != 0), in the operation order of
// kernels::build_landmarks: same bits. Records of other chunks become zero.
//
// chunks         [count] global ids, on the device; their blocks are in `blocks`
// landmark_rows  row of this rank whose retrieval query is the chunk's landmark query, [count] (device; hils only)
// queries        retrieval queries [rows, H, d]
// records        [count][record_floats]
void build_landmarks(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                     const std::int32_t* chunks, const std::uint8_t* has_landmark, const std::int64_t* landmark_rows,
                     std::int64_t count, const std::byte* queries, float* records, cudaStream_t stream);

// The landmarks of all chunks as operands of 16-bit matrix products: key = 2^exponent (hi + lo), both fp16 whatever the
// dtype of the layer (fp16_queries.cuh), so that key and 2^exponent (hi + lo) differ by at most 2^-21 of the key's
// largest element. The largest element of a landmark head stands in [2^12, 2^13).
// Tiles of kTileChunks chunks: [landmark head][tile][hi, lo][d / 64][kTileChunks][64], 128-byte rows swizzled as in
// BlockOrder::kSwizzled. Chunks without landmark have zero keys and bias -inf.
struct LandmarkTiles {
  static constexpr std::int32_t kTileChunks = 128;
  std::int32_t tiles = 0;
  std::byte* terms = nullptr;       // 1024-byte aligned
  float* bias = nullptr;            // [landmark head][tiles * kTileChunks]
  float* exponent_scale = nullptr;  // [landmark head] 2^exponent
  float* key_norm = nullptr;        // [landmark head] largest Euclidean norm of a key
  float* residual_norm = nullptr;   // [landmark head] largest norm of key - 2^exponent (hi + lo)

  static std::int32_t tiles_of(std::int32_t chunk_count) { return (chunk_count + kTileChunks - 1) / kTileChunks; }
  static std::int64_t term_bytes(const LayerShape& shape) {
    return std::int64_t{shape.landmark_heads} * tiles_of(shape.chunk_count) * 2 * kTileChunks * shape.head_dim * 2;
  }
};

// records        by chunk: [chunk_count] addresses on the device, null where a chunk has no landmark
// Fills every array of `tiles`, which the caller has allocated.
void split_landmarks(const LayerShape& shape, const float* const* records, const LandmarkTiles& tiles,
                     cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
