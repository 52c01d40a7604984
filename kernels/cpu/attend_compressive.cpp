#include "kernels/attend_compressive.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/cpu/pooled_pages.h"
#include "kernels/cpu/row_tiles.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

struct Problem {
  const AttentionProblem& shape;
  const CompressivePolicy& policy;
  const partition::SequenceGrid& grid;
  const partition::PoolGrid& pools;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const BlockTable& blocks;
  const PooledKeys& pooled;
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
};

// The work of one thread: one tile of one kv head at a time. All rows of a tile are of one segment, so that they share
// the pooled rows and the first exact key.
class CompressiveTile {
 public:
  CompressiveTile(const Problem& problem, std::int64_t most_tokens)
      : problem_(problem),
        tile_(cpu::tile_kernels(), problem.shape, most_tokens * problem.shape.group()),
        pages_(problem.shape, problem.pooled) {}

  void attend(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    const HeadGroup heads{kv_head, kv_head * group, group};
    tile_.open(problem_.queries, tile, heads);
    const TokenId newest = problem_.tokens[static_cast<std::size_t>(tile.end - 1)];
    const TokenId memory_begin = problem_.grid.window_of(newest).begin;
    const RowRange pooled = pooled_rows(memory_begin);
    pages_.attend(tile_, kv_head, pooled, [&](std::int64_t) { return pooled.size(); });
    for (ChunkId chunk = problem_.grid.chunk_of(memory_begin); chunk <= problem_.grid.chunk_of(newest); ++chunk) {
      attend_chunk(tile, chunk, memory_begin);
    }
    close(tile, heads);
  }

 private:
  RowRange pooled_rows(TokenId memory_begin) const {
    const partition::Document& document = problem_.grid.document_of(memory_begin);
    const std::int64_t end = (memory_begin - document.tokens.begin) / problem_.policy.rate;
    const std::int64_t begin = std::max<std::int64_t>(0, end - problem_.policy.slots);
    return {problem_.pools.row_at(document, begin), problem_.pools.row_at(document, end)};
  }

  // The first chunk may begin before the memory does.
  void attend_chunk(RowRange tile, ChunkId chunk, TokenId memory_begin) {
    const Range<TokenId> keys = problem_.grid.keys_of(chunk);
    const std::int64_t hidden = std::max<std::int64_t>(0, memory_begin - keys.begin);
    tile_.attend(problem_.blocks, chunk, [&](std::int64_t n) {
      const TokenId query = problem_.tokens[static_cast<std::size_t>(tile.begin + n)];
      return cpu::KeyRun{hidden, intersect(keys, {keys.begin, query + 1}).size()};
    });
  }

  void close(RowRange tile, const HeadGroup& group) {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t row = tile.begin + r / group.heads;
      const std::int64_t head = group.first_head + r % group.heads;
      tile_.close(r, problem_.out.at(row, head), problem_.lse(row, head));
    }
  }

  const Problem& problem_;
  cpu::OnlineTile tile_;
  cpu::PooledPages pages_;
};

}  // namespace

void attend_compressive(const AttentionProblem& problem, const CompressivePolicy& policy,
                        const partition::SequenceGrid& grid, const partition::PoolGrid& pools, const RowsView& queries,
                        std::span<const TokenId> tokens, RowRange rows, const BlockTable& blocks,
                        const PooledKeys& pooled, TensorView<float, 3> out, TensorView<float, 2> lse, int threads) {
  require(pools.rate() == policy.rate, "pooled rows are groups of the policy's rate");
  require(out.stride(2) == 1, "attend_compressive writes rows of contiguous components");
  if (rows.empty()) return;
  const Problem all{problem, policy, grid, pools, queries, tokens, blocks, pooled, out, lse};
  const std::int64_t most_tokens = cpu::tile_tokens(rows.size() * problem.kv_heads, problem.group(), threads);
  const std::vector<RowRange> tiles = cpu::cut_tiles(grid, tokens, rows, most_tokens, policy.segment);
  std::vector<CompressiveTile> workers(static_cast<std::size_t>(threads), CompressiveTile(all, most_tokens));
  const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * problem.kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(
        tiles[static_cast<std::size_t>(task / problem.kv_heads)], task % problem.kv_heads);
  }
}

}  // namespace ringmark::kernels
