// What device kernels know of a layer: its shape by value, its geometry as flat arrays on the device, and where the
// blocks are. Every launcher of this folder takes plain pointers to device memory, enqueues on the given stream and
// returns at once. Offsets are 64-bit.
//
// Queries and outputs are [rows, H, d]; rows stand in the order of the rank's layout.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/dtype.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kernels/landmarks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::cuda {

// Passed by value to kernels.
struct LayerShape {
  std::int32_t heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t group = 1;  // heads / kv_heads
  std::int32_t head_dim = 64;
  std::int32_t chunk_size = 64;
  std::int32_t topk = 0;
  std::int32_t chunk_count = 0;
  std::int32_t landmark_heads = 0;    // LandmarkShape::heads
  std::int32_t landmark_vectors = 1;  // LandmarkShape::vectors
  DType dtype = DType::kBfloat16;
  Scorer scorer = Scorer::kHils;
  float scale = 0.125f;

  // Throws Error(kBadInput) for a policy that no kernel here knows.
  static LayerShape of(const AttentionProblem& problem, const AttentionPolicy& policy,
                       const partition::SequenceGrid& grid);
  LandmarkShape landmark_shape() const { return {landmark_heads, landmark_vectors, head_dim}; }
};

// One row of this rank. The window pass attends, in ascending order:
//     slots [0, sink_end(c)) of chunks c in [sink_first, sink_last)             sinks below the window
//     slots [0, slots_end(c)) of chunks c in [window_first, chunk)              whole chunks of the window
//     slots [0, min(visible, slots_end(chunk))) of the own chunk
// and the row may choose chunks [eligible_first, eligible_end).
struct RowGeometry {
  std::int32_t chunk = 0;    // the own chunk, global id
  std::int32_t visible = 0;  // slots of the own chunk up to and with the row
  std::int32_t window_first = 0;
  std::int32_t sink_first = 0;
  std::int32_t sink_last = 0;
  std::int32_t eligible_first = 0;
  std::int32_t eligible_end = 0;
  std::int32_t spare = 0;
};

// Slots are relative to the chunk's first one.
struct ChunkGeometry {
  std::int16_t key_begin = 0;  // ordinary tokens [key_begin, key_end): what a query attends that chose the chunk
  std::int16_t key_end = 0;
  std::int16_t slots_end = 0;  // all keys [0, slots_end): without a landmark slot, with sinks
  std::int16_t sink_end = 0;   // sinks [0, sink_end), without a landmark slot
};

// On the device.
struct Geometry {
  const RowGeometry* rows = nullptr;      // [row_count]
  const ChunkGeometry* chunks = nullptr;  // [chunk_count]
  std::int64_t row_count = 0;
};

// How the elements of K (and of V) of a block, [chunk_size][head_dim], stand in memory.
//     plain     row-major, as on the CPU
//     swizzled  the shared memory image of the tensor core kernels, so that one bulk copy loads it: halves of 64
//               channels, [head_dim / 64][chunk_size][64], in each of whose 128-byte rows the 16-byte column x stands
//               at x XOR (row mod 8). 16-bit types, head_dim 64 or 128, chunk_size a multiple of 8.
//               V is fp16, in layers of bf16 too (pack_blocks).
enum class BlockOrder { kPlain, kSwizzled };

// Byte offset of element (slot, channel) inside K of a swizzled block.
constexpr std::int64_t swizzled_offset(std::int64_t chunk_size, std::int64_t slot, std::int64_t channel) {
  const std::int64_t half = channel / 64, within = channel % 64;
  return half * chunk_size * 128 + slot * 128 + ((within / 8) ^ (slot % 8)) * 16 + (within % 8) * 2;
}

// Where the blocks are: [chunk_count * kv_heads] addresses on the device, null where a block is not present. A block is
// K then V, BlockShape::bytes() long, 128-byte aligned. Addresses may lie in the memory of a peer GPU.
struct DeviceBlocks {
  const std::byte* const* table = nullptr;
  BlockOrder order = BlockOrder::kPlain;
};

// The host side of the geometry, and its copy on the device.
std::vector<RowGeometry> row_geometry(const partition::SequenceGrid& grid, std::span<const TokenId> tokens);
std::vector<ChunkGeometry> chunk_geometry(const partition::SequenceGrid& grid, const AttentionPolicy& policy);

// Which family of kernels runs a layer.
enum class Path {
  kHopper,  // wgmma and bulk copies: compute capability 9.0
  kMma,     // mma.sync: compute capability 8.0 and later
  kSimt,    // fp32 on the plain cores: any shape and dtype; also what settles close choices exactly
};
constexpr const char* name_of(Path path) {
  switch (path) {
    case Path::kHopper: return "hopper";
    case Path::kMma: return "mma";
    case Path::kSimt: return "simt";
  }
  return "?";
}
// Shapes with tensor core kernels: bf16 or fp16, head_dim 64 or 128, group 1, 2, 4, 8 or 16, chunk_size 64, scorer
// hils, mean or none, topk at most kMaxTensorTopk.
inline constexpr std::int32_t kMaxTensorTopk = 64;
bool has_tensor_kernels(const LayerShape& shape);
// The fastest path of the current device for a shape.
Path choose_path(const LayerShape& shape);
// The path that was asked for, or the fastest. Throws Error(kBadInput) when the shape has no such kernels.
Path resolve_path(std::optional<Path> asked, const LayerShape& shape);
constexpr BlockOrder block_order(Path path) { return path == Path::kSimt ? BlockOrder::kPlain : BlockOrder::kSwizzled; }

}  // namespace ringmark::kernels::cuda
