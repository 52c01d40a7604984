#include "kernels/cpu/chunk_panels.h"

#include <cstddef>

namespace ringmark::kernels::cpu {
namespace {

std::size_t floats(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

}  // namespace

ChunkPanels::ChunkPanels(const BlockShape& shape)
    : keys_(floats(round_up(shape.chunk_size, kPanelWidth), panel_depth(shape.head_dim))),
      values_(floats(shape.chunk_size, round_up(shape.head_dim, kPanelWidth))),
      widened_(floats(kPanelWidth, panel_depth(shape.head_dim))),
      scores_(static_cast<std::size_t>(score_floats(shape.chunk_size))) {}

PackedChunk ChunkPanels::pack(const TileKernels& kernels, const BlockTable& blocks, ChunkId chunk, std::int64_t kv_head,
                              std::int64_t first, std::int64_t count) {
  const BlockShape& shape = blocks.shape();
  const std::int64_t row_bytes = shape.row_bytes();
  const StoredRows keys{blocks.keys(chunk, kv_head) + first * row_bytes, row_bytes, shape.dtype};
  const StoredRows values{blocks.values(chunk, kv_head) + first * row_bytes, row_bytes, shape.dtype};
  kernels.pack_columns(keys, count, shape.head_dim, 1.0f, widened_.data(), keys_.data());
  const bool finite = kernels.pack_values(values, count, shape.head_dim, values_.data());
  return {keys_.data(), values_.data(), count, shape.head_dim, finite};
}

}  // namespace ringmark::kernels::cpu
