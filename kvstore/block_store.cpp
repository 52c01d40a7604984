#include "kvstore/block_store.h"

#include <cstring>

#include "core/error.h"

namespace ringmark::kvstore {

BlockStore::BlockStore(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                       const partition::Layout& layout, RankId rank, const RowsView& keys, const RowsView& values,
                       comm::Bytes arena)
    : problem_(problem), layout_(layout), rank_(rank), arena_(arena) {
  const auto& chunks = layout.chunks_of(rank);
  require(static_cast<std::int64_t>(arena.size()) == bytes_of(problem, static_cast<std::int64_t>(chunks.size())),
          "the arena of a block store has exactly its size");
  const kernels::BlockShape shape = kernels::BlockShape::of(problem);
  const auto row_bytes = static_cast<std::size_t>(shape.row_bytes());
  for (const ChunkId chunk : chunks) {
    if (!layout.has_rows(chunk)) continue;
    const std::int64_t first_row = layout.first_row(chunk);
    const std::int64_t tokens = grid.tokens_of(chunk).size();
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      std::byte* block = arena.data() + offset_of(problem, layout.slot(chunk), kv_head);
      if (tokens < problem.chunk_size) std::memset(block, 0, static_cast<std::size_t>(shape.bytes()));
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::memcpy(block + t * shape.row_bytes(), keys.row(first_row + t, kv_head), row_bytes);
        std::memcpy(block + shape.value_offset() + t * shape.row_bytes(), values.row(first_row + t, kv_head),
                    row_bytes);
      }
    }
  }
}

void BlockStore::list_in(kernels::BlockTable& table) const {
  for (const ChunkId chunk : layout_.chunks_of(rank_)) {
    for (std::int64_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head) {
      table.set(chunk, kv_head, arena_.data() + offset_of(problem_, layout_.slot(chunk), kv_head));
    }
  }
}

}  // namespace ringmark::kvstore
