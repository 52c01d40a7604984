// The panels of one chunk at a time, and the memory they stand in. One per thread.
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "kernels/block_table.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"

namespace ringmark::kernels::cpu {

class ChunkPanels {
 public:
  // For blocks of no more keys than this shape's, of the same head_dim.
  explicit ChunkPanels(const BlockShape& shape);

  // Packs slots [first, first + count) of a block; no other slot is read. Valid until the next call.
  PackedChunk pack(const TileKernels& kernels, const BlockTable& blocks, ChunkId chunk, std::int64_t kv_head,
                   std::int64_t first, std::int64_t count);

  // Scratch of the attend functions.
  float* scores() { return scores_.data(); }

 private:
  AlignedFloats keys_;
  AlignedFloats values_;
  AlignedFloats widened_;
  AlignedFloats scores_;
};

}  // namespace ringmark::kernels::cpu
