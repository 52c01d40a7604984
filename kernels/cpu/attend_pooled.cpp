#include "kernels/attend_pooled.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "kernels/choose_blocks.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/cpu/pooled_pages.h"
#include "kernels/cpu/row_tiles.h"
#include "kernels/exp2.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

using cpu::kPanelWidth;
using cpu::TileKernels;

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const partition::PoolGrid& pools;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const PooledKeys& pooled;
  const GatedRows& into;
  TensorView<float, 2> lse;
  Selection& selection;
};

// Chunks of the query's document whose last slot it sees.
std::int64_t complete_chunks(const partition::SequenceGrid& grid, TokenId query) {
  return (query + 1 - grid.document_of(query).tokens.begin) / grid.chunk_size();
}

// The work of one thread: one tile of one kv head at a time.
class PooledTile {
 public:
  PooledTile(const Problem& problem, const TileKernels& kernels, std::int64_t most_tokens)
      : problem_(problem),
        kernels_(kernels),
        tile_(kernels, problem.shape, most_tokens * problem.shape.group()),
        pages_(problem.shape, problem.pooled),
        complete_(static_cast<std::size_t>(most_tokens)),
        choices_(static_cast<std::size_t>(most_tokens), BlockChoice(problem.selection.topk)),
        branch_(static_cast<std::size_t>(problem.shape.head_dim)) {
    const auto depth = static_cast<std::size_t>(cpu::panel_depth(problem.shape.head_dim) * kPanelWidth);
    const auto rows = static_cast<std::size_t>(most_tokens * problem.shape.group());
    widened_.resize(depth);
    panel_.resize(depth);
    products_.resize(rows * kPanelWidth);
    queries_.resize(rows);
    lse_.resize(rows);
  }

  void attend(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    const HeadGroup heads{kv_head, kv_head * group, group};
    tile_.open(problem_.queries, tile, heads);
    look(tile);
    pages_.attend(tile_, kv_head, pooled_rows_, [&](std::int64_t n) { return complete_[static_cast<std::size_t>(n)]; });
    close(tile, heads);
    choose(tile, kv_head);
  }

 private:
  // What the rows of the tile see: its last one the most.
  void look(RowRange tile) {
    for (std::int64_t n = 0; n < tile.size(); ++n) {
      complete_[static_cast<std::size_t>(n)] = complete_chunks(problem_.grid, token(tile, n));
    }
    first_chunk_ = problem_.grid.document_of(token(tile, 0)).chunks.begin;
    const std::int64_t first = problem_.pools.rows_of(first_chunk_).begin;
    pooled_rows_ = {first, first + complete_[static_cast<std::size_t>(tile.size() - 1)]};
  }

  void close(RowRange tile, const HeadGroup& group) {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t row = tile.begin + r / group.heads;
      const std::int64_t head = group.first_head + r % group.heads;
      tile_.close(r, branch_.data(), problem_.lse(row, head));
      problem_.into.add(row, head, branch_.data());
      lse_[static_cast<std::size_t>(r)] = problem_.lse(row, head);
    }
  }

  // The probabilities once more, panel by panel, now that their normaliser is known.
  void choose(RowRange tile, std::int64_t kv_head) {
    for (std::int64_t n = 0; n < tile.size(); ++n) {
      choices_[static_cast<std::size_t>(n)].start(problem_.grid, token(tile, n));
    }
    for (std::int64_t r = 0; r < tile_.rows(); ++r) queries_[static_cast<std::size_t>(r)] = tile_.query(r);
    for (std::int64_t first = 0; first < pooled_rows_.size(); first += kPanelWidth) {
      multiply(kv_head, first);
      for (std::int64_t n = 0; n < tile.size(); ++n) offer(n, first);
    }
    for (std::int64_t n = 0; n < tile.size(); ++n) {
      choices_[static_cast<std::size_t>(n)].write(problem_.selection.slots(tile.begin + n, kv_head));
    }
  }

  // Scores of all rows and of the chunks of one panel.
  void multiply(std::int64_t kv_head, std::int64_t first) {
    const std::int64_t head_dim = problem_.shape.head_dim;
    const BlockShape shape = problem_.pooled.shape();
    const cpu::StoredRows keys{problem_.pooled.block(kv_head, pooled_rows_.begin + first), shape.row_bytes(),
                               shape.dtype};
    const std::int64_t count = std::min(kPanelWidth, pooled_rows_.size() - first);
    kernels_.pack_columns(keys, count, head_dim, 1.0f, widened_.data(), panel_.data());
    kernels_.multiply(queries_.data(), tile_.rows(), head_dim, panel_.data(), products_.data());
    if (problem_.shape.logit_cap > 0.0f) {
      kernels_.cap_scores(products_.data(), tile_.rows() * kPanelWidth, problem_.shape.logit_cap);
    }
  }

  void offer(std::int64_t n, std::int64_t first) {
    const std::int64_t group = problem_.shape.group();
    const std::int64_t count = std::min(kPanelWidth, complete_[static_cast<std::size_t>(n)] - first);
    for (std::int64_t column = 0; column < count; ++column) {
      float importance = 0.0f;
      for (std::int64_t r = n * group; r < (n + 1) * group; ++r) {
        importance += exp_of_negative(products_[static_cast<std::size_t>(r * kPanelWidth + column)] -
                                      lse_[static_cast<std::size_t>(r)]);
      }
      choices_[static_cast<std::size_t>(n)].offer(first_chunk_ + first + column, importance);
    }
  }

  TokenId token(RowRange tile, std::int64_t n) const {
    return problem_.tokens[static_cast<std::size_t>(tile.begin + n)];
  }

  const Problem& problem_;
  const TileKernels& kernels_;
  cpu::OnlineTile tile_;
  cpu::PooledPages pages_;
  ChunkId first_chunk_;                 // of the tile's document
  RowRange pooled_rows_;                // that some row of the tile sees
  std::vector<std::int64_t> complete_;  // by token
  std::vector<BlockChoice> choices_;    // by token
  std::vector<float> branch_;
  std::vector<const float*> queries_;  // by row
  std::vector<float> lse_;             // by row
  cpu::AlignedFloats widened_;
  cpu::AlignedFloats panel_;
  cpu::AlignedFloats products_;  // [rows][kPanelWidth]
};

}  // namespace

void attend_pooled(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                   const partition::PoolGrid& pools, const RowsView& queries, std::span<const TokenId> tokens,
                   RowRange rows, const PooledKeys& pooled, const GatedRows& into, TensorView<float, 2> lse,
                   Selection& selection, int threads) {
  require(pools.rate() == problem.chunk_size, "the compressed branch attends to whole chunks");
  if (rows.empty()) return;
  const Problem all{problem, grid, pools, queries, tokens, pooled, into, lse, selection};
  const TileKernels& kernels = cpu::tile_kernels();
  const std::int64_t most_tokens = cpu::tile_tokens(rows.size() * problem.kv_heads, problem.group(), threads);
  const std::vector<RowRange> tiles = cpu::cut_tiles(grid, tokens, rows, most_tokens);
  std::vector<PooledTile> workers(static_cast<std::size_t>(threads), PooledTile(all, kernels, most_tokens));
  const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * problem.kv_heads;
  // Last tiles first: they see the most chunks.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = tasks - 1; task >= 0; --task) {
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(
        tiles[static_cast<std::size_t>(task / problem.kv_heads)], task % problem.kv_heads);
  }
}

}  // namespace ringmark::kernels
