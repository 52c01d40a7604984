// Blocks: the K and V of one (chunk, kv head) pair, contiguous, [K|V][chunk_size][head_dim] in storage precision.
// A partial last chunk fills its first slots; the rest of the block is undefined and never read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/problem.h"

namespace ringmark::kernels {

struct BlockShape {
  std::int64_t chunk_size = 0;
  std::int64_t head_dim = 0;
  DType dtype = DType::kFloat32;

  static BlockShape of(const AttentionProblem& p) { return {p.chunk_size, p.head_dim, p.dtype}; }
  std::int64_t row_bytes() const { return head_dim * size_of(dtype); }
  std::int64_t value_offset() const { return chunk_size * row_bytes(); }  // bytes from K to V
  std::int64_t bytes() const { return 2 * value_offset(); }
};

// Where the blocks that a kernel may read are. Non-owning; the address of a block that is not present is null.
class BlockTable {
 public:
  BlockTable(BlockShape shape, std::int64_t chunks, std::int64_t kv_heads)
      : shape_(shape), kv_heads_(kv_heads), blocks_(static_cast<std::size_t>(chunks * kv_heads), nullptr) {}

  const BlockShape& shape() const { return shape_; }
  // [chunks, kv_heads]
  const std::vector<const std::byte*>& addresses() const { return blocks_; }
  void set(ChunkId chunk, std::int64_t kv_head, const std::byte* block) { blocks_[index(chunk, kv_head)] = block; }
  const std::byte* keys(ChunkId chunk, std::int64_t kv_head) const { return blocks_[index(chunk, kv_head)]; }
  const std::byte* values(ChunkId chunk, std::int64_t kv_head) const {
    return blocks_[index(chunk, kv_head)] + shape_.value_offset();
  }

 private:
  std::size_t index(ChunkId chunk, std::int64_t kv_head) const {
    return static_cast<std::size_t>(chunk.value() * kv_heads_ + kv_head);
  }

  BlockShape shape_;
  std::int64_t kv_heads_;
  std::vector<const std::byte*> blocks_;
};

}  // namespace ringmark::kernels
