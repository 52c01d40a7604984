#include "runtime/window_fetch.h"

#include <algorithm>

#include "kernels/block_table.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime {
namespace {

// What may move before the first row is attended to: a fraction of a millisecond over NVLink.
constexpr std::int64_t kLittle = std::int64_t{64} << 20;

// Chunks of other ranks that some row sees, each once. Of the rows of a chunk the first sees furthest back.
std::vector<ChunkId> remote_chunks(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank) {
  std::vector<ChunkId> remote;
  const auto add = [&](Range<TokenId> tokens) {
    if (tokens.empty()) return;
    for (ChunkId chunk = grid.chunk_of(tokens.begin); chunk <= grid.chunk_of(tokens.end - 1); ++chunk) {
      if (layout.owner(chunk) != rank) remote.push_back(chunk);
    }
  };
  for (const ChunkId own : layout.chunks_of(rank)) {
    const TokenId first = grid.tokens_of(own).begin;
    add(grid.sinks_of(grid.tokens_of(own).end - 1));
    add(grid.window_of(first));
  }
  std::sort(remote.begin(), remote.end());
  remote.erase(std::unique(remote.begin(), remote.end()), remote.end());
  return remote;
}

}  // namespace

WindowFetch plan_window_fetch(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                              const partition::Layout& layout, RankId rank, std::int64_t budget) {
  const std::int64_t rows = layout.token_count(rank);
  const std::vector<ChunkId> remote = remote_chunks(grid, layout, rank);
  const std::int64_t bytes =
      static_cast<std::int64_t>(remote.size()) * problem.kv_heads * kernels::BlockShape::of(problem).bytes();
  if (rows > 0 && bytes <= kLittle && 2 * bytes <= budget) {
    const RowNeeds all = [&](std::int64_t, std::vector<BlockId>& needs) {
      for (const ChunkId chunk : remote) {
        for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) needs.push_back({chunk, kv_head});
      }
      return true;
    };
    return {plan_fetch(problem, layout, rank, {0, 1}, all, budget), rows};
  }
  const std::vector<TokenId> tokens = layout.tokens_of(rank);
  return {plan_fetch(problem, layout, rank, {0, rows}, window_needs(problem, grid, tokens), budget), 1};
}

}  // namespace ringmark::runtime
