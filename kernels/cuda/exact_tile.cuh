// The matrix product of exact scoring: 32 rows, queries that share a landmark head, against the landmark vectors of a
// tile of chunks. Every element is one chain of fused multiply-adds over the channels in ascending order. A warp has 8
// of the rows, a lane every 32nd column; channels pass through shared memory a step at a time.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ringmark::kernels::cuda {

constexpr int kExactWarps = 4;
constexpr int kExactThreads = 32 * kExactWarps;
constexpr int kWarpRows = 8;
constexpr int kExactRows = kExactWarps * kWarpRows;
constexpr int kLaneColumns = 4;
constexpr int kColumns = 32 * kLaneColumns;
// Channels a step: few where the products are what takes time, many where it is the bytes.
constexpr int kComputeDepth = 16;
constexpr int kMemoryDepth = 32;
// Floats: eight lanes that read 16 bytes each find all banks free.
constexpr int key_stride(int depth) { return depth + 4; }

struct ChunkRange {
  std::int32_t begin = 0x7FFFFFFF;
  std::int32_t end = 0;

  __device__ void include(std::int32_t first, std::int32_t last) {
    if (first >= last) return;
    begin = min(begin, first);
    end = max(end, last);
  }
};

// The landmarks of one landmark head, and where their numbers stand in a record.
struct HeadLandmarks {
  const float* const* records;  // by chunk; null: none here
  std::int32_t key;             // floats; a record has less than 2^31
  std::int32_t bias;
  std::int32_t head_dim;
};

// A column of a tile: one vector of a chunk.
struct Column {
  const float* record;  // null: no chunk here
  std::int32_t vector;
};

// The tiles of a range of chunks. A tile holds whole chunks, or, when a chunk has more vectors than a tile has columns,
// a part of one.
template <bool kManyVectors>
struct TileWalk {
  ChunkRange chunks;
  std::int32_t vectors;
  std::int32_t tile_chunks;  // whole ones
  std::int32_t chunk_tiles;  // tiles of one chunk

  __device__ TileWalk(const ChunkRange& range, std::int32_t landmark_vectors)
      : chunks(range), vectors(1), tile_chunks(kColumns), chunk_tiles(1) {
    if constexpr (kManyVectors) {
      vectors = landmark_vectors;
      tile_chunks = max(1, kColumns / vectors);
      chunk_tiles = (vectors + kColumns - 1) / kColumns;
    }
  }
  __device__ std::int32_t count() const {
    return max(0, (chunks.end - chunks.begin + tile_chunks - 1) / tile_chunks * chunk_tiles);
  }
  __device__ std::int32_t first_chunk(std::int32_t tile) const {
    return chunks.begin + (kManyVectors ? tile / chunk_tiles : tile) * tile_chunks;
  }
  __device__ bool meets(std::int32_t tile, const ChunkRange& range) const {
    return first_chunk(tile) < range.end && range.begin < first_chunk(tile) + tile_chunks;
  }
  __device__ bool ends_chunk(std::int32_t tile) const { return !kManyVectors || (tile + 1) % chunk_tiles == 0; }

  __device__ Column column(const float* const* records, std::int32_t tile, int number) const {
    std::int32_t chunk = first_chunk(tile) + number, vector = 0;
    if constexpr (kManyVectors) {
      const bool whole = chunk_tiles == 1;
      chunk = first_chunk(tile) + (whole ? number / vectors : 0);
      vector = whole ? number % vectors : tile % chunk_tiles * kColumns + number;
      if (vector >= vectors || (whole && number >= tile_chunks * vectors)) return {nullptr, 0};
    }
    return {chunk < chunks.end ? records[chunk] : nullptr, vector};
  }
};

// Shared memory: the keys of two steps.
template <int kDepth>
struct ColumnSteps {
  alignas(16) float keys[2][kColumns][key_stride(kDepth)];
};

// What a thread loads of a tile's columns: in every step 4 channels of each of kLoads keys.
template <int kDepth>
struct ColumnLoader {
  static constexpr int kQuads = kDepth / 4;
  static constexpr int kLoads = kColumns * kQuads / kExactThreads;

  const float* keys[kLoads];  // null: no chunk there

  __device__ static int column_of(int load) { return (threadIdx.x + load * kExactThreads) / kQuads; }

  // Turns to a tile and fetches its biases. NaN: no chunk here, -inf: an unused vector.
  template <bool kManyVectors>
  __device__ void turn_to(const HeadLandmarks& landmarks, const TileWalk<kManyVectors>& walk, std::int32_t tile,
                          float* biases) {
    static_assert(kExactThreads == kColumns);
    constexpr float kInfinity = __builtin_huge_valf();
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      keys[load] = key_of(landmarks, walk.column(landmarks.records, tile, column_of(load)));
    }
    const Column column = walk.column(landmarks.records, tile, threadIdx.x);
    float bias = __int_as_float(0x7FFFFFFF);
    if (column.record != nullptr) {
      const bool unused = kManyVectors && *key_of(landmarks, column) == kInfinity;
      bias = unused ? -kInfinity : column.record[landmarks.bias];
    }
    biases[threadIdx.x] = bias;
  }

  // Asks for the channels [channel, channel + kDepth) of all columns. What lies past the end of a key, or belongs to no
  // chunk, is not read later.
  __device__ void load(std::int32_t channel, std::int32_t head_dim, int stage, ColumnSteps<kDepth>& steps) const {
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (keys[load] == nullptr) continue;
      const int offset = 4 * (threadIdx.x % kQuads), left = head_dim - channel - offset;
      const float* from = keys[load] + channel + offset;
      float* to = &steps.keys[stage][column_of(load)][offset];
      if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && left >= 4) {
        __pipeline_memcpy_async(to, from, 16);
      } else {
        for (int i = 0; i < min(4, left); ++i) __pipeline_memcpy_async(to + i, from + i, 4);
      }
    }
    __pipeline_commit();
  }

 private:
  __device__ static const float* key_of(const HeadLandmarks& landmarks, const Column& column) {
    if (column.record == nullptr) return nullptr;
    return column.record + landmarks.key + column.vector * landmarks.head_dim;
  }
};

// Queries stand in shared memory as [channel / 4][kExactRows][4].
__device__ inline int query_place(int row, int channel) { return (channel / 4 * kExactRows + row) * 4 + channel % 4; }

using Products = float[kWarpRows][kLaneColumns];

// Goes on with the chains of a warp's first kRows rows and a lane's columns over `depth` channels. `queries`: from the
// warp's first row and the step's first channel on.
template <int kRows, int kDepth>
__device__ void multiply_rows(const float* queries, const float (*keys)[key_stride(kDepth)], int depth, int lane,
                              Products& products) {
  if (depth < kDepth) {
#pragma unroll 1
    for (int channel = 0; channel < depth; ++channel) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) {
          products[r][j] = __fmaf_rn(queries[query_place(r, channel)], keys[lane + 32 * j][channel], products[r][j]);
        }
      }
    }
    return;
  }
#pragma unroll 1  // the other warps hide what more would hide, and registers are short
  for (int quad = 0; quad < kDepth / 4; ++quad) {
    float4 key[kLaneColumns];
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) key[j] = *reinterpret_cast<const float4*>(&keys[lane + 32 * j][4 * quad]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 query = *reinterpret_cast<const float4*>(queries + query_place(r, 4 * quad));
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) products[r][j] = __fmaf_rn(query.x, key[j].x, products[r][j]);
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) products[r][j] = __fmaf_rn(query.y, key[j].y, products[r][j]);
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) products[r][j] = __fmaf_rn(query.z, key[j].z, products[r][j]);
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) products[r][j] = __fmaf_rn(query.w, key[j].w, products[r][j]);
    }
  }
}

// rows: of the warp, at least 1. Those past them may be computed too, for nobody: many rows fill their warps anyway.
template <int kDepth>
__device__ void multiply_step(int rows, const float* queries, const float (*keys)[key_stride(kDepth)], int depth,
                              int lane, Products& products) {
  static_assert(kWarpRows == 8);
  if (kDepth == kComputeDepth || rows > 4) {
    multiply_rows<8, kDepth>(queries, keys, depth, lane, products);
  } else if (rows > 1) {
    multiply_rows<4, kDepth>(queries, keys, depth, lane, products);
  } else {
    multiply_rows<1, kDepth>(queries, keys, depth, lane, products);
  }
}

}  // namespace ringmark::kernels::cuda
