#include "kvstore/pooled_table.h"

#include <algorithm>

namespace ringmark::kvstore {

PooledTable::PooledTable(comm::Communicator& communicator, const AttentionProblem& problem,
                         const partition::PoolGrid& pools, const partition::Layout& layout, std::span<float> own)
    : count_(pools.rows()), head_dim_(problem.head_dim) {
  std::vector<std::vector<float>> remote(static_cast<std::size_t>(layout.ranks()));
  std::vector<comm::Bytes> all;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::vector<float>& rows = remote[static_cast<std::size_t>(rank)];
    if (rank == communicator.rank()) {
      all.push_back(std::as_writable_bytes(own));
    } else {
      const std::int64_t floats = pooled_rows_of(pools, layout, RankId(rank)) * kernels::pooled_row_floats(problem);
      rows.resize(static_cast<std::size_t>(floats));
      all.push_back(std::as_writable_bytes(std::span(rows)));
    }
  }
  communicator.all_gather("gather pooled keys", std::as_bytes(own), all);

  rows_.resize(static_cast<std::size_t>(count_ * kernels::pooled_row_floats(problem)));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const float* next = rank == communicator.rank() ? own.data() : remote[static_cast<std::size_t>(rank)].data();
    for (const ChunkId chunk : layout.chunks_of(RankId(rank))) {
      const RowRange rows = pools.rows_of(chunk);
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        for (std::int64_t part = 0; part < 2 * problem.kv_heads; ++part, next += head_dim_) {
          std::copy_n(next, head_dim_, rows_.data() + (part * count_ + row) * head_dim_);
        }
      }
    }
  }
}

std::int64_t pooled_rows_of(const partition::PoolGrid& pools, const partition::Layout& layout, RankId rank) {
  std::int64_t rows = 0;
  for (const ChunkId chunk : layout.chunks_of(rank)) rows += pools.rows_of(chunk).size();
  return rows;
}

}  // namespace ringmark::kvstore
