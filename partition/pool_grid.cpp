#include "partition/pool_grid.h"

#include <algorithm>

#include "core/error.h"

namespace ringmark::partition {

PoolGrid::PoolGrid(const AttentionProblem& problem, const SequenceGrid& grid, std::int64_t rate)
    : grid_(grid), rate_(rate), first_row_{0} {
  require(problem.chunk_size % rate == 0, "groups of pooled keys lie inside one chunk");
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    const std::int64_t slots = grid.tokens_of(chunk).size();
    const std::int64_t keys = grid.keys_of(chunk).size();
    first_row_.push_back(first_row_.back() + std::min(slots / rate, (keys + rate - 1) / rate));
  }
}

Range<TokenId> PoolGrid::keys_of(ChunkId chunk, std::int64_t index) const {
  const Range<TokenId> keys = grid_.keys_of(chunk);
  const TokenId begin = keys.begin + index * rate_;
  return {begin, std::min(begin + rate_, keys.end)};
}

std::int64_t PoolGrid::row_at(const Document& document, std::int64_t group) const {
  const std::int64_t per_chunk = grid_.chunk_size() / rate_;
  const ChunkId chunk = document.chunks.begin + group / per_chunk;
  const std::int64_t inside = group % per_chunk;
  return inside == 0 ? first_row(chunk) : std::min(first_row(chunk) + inside, first_row(chunk + 1));
}

}  // namespace ringmark::partition
