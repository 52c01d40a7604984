#include "runtime/landmark_rows.h"

#include <cstring>

namespace ringmark::runtime {

std::vector<std::byte> landmark_rows(const partition::SequenceGrid& grid, const partition::Layout& layout,
                                     std::span<const ChunkId> chunks, const LayerShard& shard) {
  const bool own = shard.landmark_queries().rows > 0;
  const RowsView from = own ? shard.landmark_queries() : shard.retrieval_queries();
  const std::int64_t row_bytes = from.heads * from.head_dim * size_of(from.dtype);
  std::vector<std::byte> rows(chunks.size() * static_cast<std::size_t>(row_bytes));
  for (std::size_t n = 0; n < chunks.size(); ++n) {
    const std::int64_t row = own ? layout.slot(chunks[n]) : last_row(grid, layout, chunks[n]);
    std::memcpy(rows.data() + n * static_cast<std::size_t>(row_bytes), from.row(row, 0),
                static_cast<std::size_t>(row_bytes));
  }
  return rows;
}

std::int64_t last_row(const partition::SequenceGrid& grid, const partition::Layout& layout, ChunkId chunk) {
  return layout.first_row(chunk) + grid.tokens_of(chunk).size() - 1;
}

}  // namespace ringmark::runtime
