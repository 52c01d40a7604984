#include "kernels/attend_window.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/cpu/row_tiles.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

using cpu::TileKernels;

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const BlockTable& blocks;
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
  const RowsView* sink_queries;
};

// What a query sees: the sinks below its window, up to sinks_end, and the window. A chunk may hold some of both, with a
// gap between.
struct Sight {
  TokenId query;
  TokenId window_begin;
  TokenId sinks_end;

  cpu::KeyRun sinks_of(Range<TokenId> slots, std::int64_t keys) const {
    return {0, std::clamp<std::int64_t>(sinks_end - slots.begin, 0, keys), query - slots.begin};
  }
  cpu::KeyRun window_of(Range<TokenId> slots, std::int64_t keys) const {
    return {std::clamp<std::int64_t>(window_begin - slots.begin, 0, keys),
            std::clamp<std::int64_t>(query + 1 - slots.begin, 0, keys), query - slots.begin};
  }
};

// The work of one thread: one tile of one kv head at a time.
class WindowTile {
 public:
  WindowTile(const Problem& problem, const TileKernels& kernels, std::int64_t most_tokens)
      : problem_(problem),
        tile_(kernels, problem.shape, most_tokens * problem.shape.group()),
        sights_(static_cast<std::size_t>(most_tokens)) {}

  void attend(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    const HeadGroup heads{kv_head, kv_head * group, group};
    tile_.open(problem_.queries, tile, heads);
    if (problem_.sink_queries != nullptr) tile_.open_for_sinks(*problem_.sink_queries, tile);
    look(tile);
    const Sight& oldest = sights_.front();
    const Sight& newest = sights_[static_cast<std::size_t>(tile.size() - 1)];
    const partition::SequenceGrid& grid = problem_.grid;
    ChunkId chunk = grid.document_of(newest.query).chunks.begin;
    for (; grid.tokens_of(chunk).begin < newest.sinks_end; ++chunk) attend_sinks(chunk);
    chunk = grid.chunk_of(oldest.window_begin);
    for (const ChunkId last = grid.chunk_of(newest.query); chunk <= last; ++chunk) {
      attend_chunk(chunk, cpu::QuerySet::kOwn, [](const Sight& sight, Range<TokenId> slots, std::int64_t keys) {
        return sight.window_of(slots, keys);
      });
    }
    close(tile, heads);
  }

 private:
  void look(RowRange tile) {
    for (std::int64_t n = 0; n < tile.size(); ++n) {
      const TokenId query = problem_.tokens[static_cast<std::size_t>(tile.begin + n)];
      sights_[static_cast<std::size_t>(n)] = {query, problem_.grid.window_of(query).begin,
                                              problem_.grid.sinks_of(query).end};
    }
  }

  void attend_sinks(ChunkId chunk) {
    const auto queries = problem_.sink_queries != nullptr ? cpu::QuerySet::kForSinks : cpu::QuerySet::kOwn;
    attend_chunk(chunk, queries, [](const Sight& sight, Range<TokenId> slots, std::int64_t keys) {
      return sight.sinks_of(slots, keys);
    });
  }

  template <class RunOf>
  void attend_chunk(ChunkId chunk, cpu::QuerySet queries, RunOf run_of) {
    const Range<TokenId> slots = problem_.grid.tokens_of(chunk);
    const bool landmark = problem_.shape.landmark_slots && slots.size() == problem_.shape.chunk_size;
    const std::int64_t keys = slots.size() - (landmark ? 1 : 0);
    tile_.attend(
        problem_.blocks, chunk,
        [&](std::int64_t n) { return run_of(sights_[static_cast<std::size_t>(n)], slots, keys); }, queries);
  }

  void close(RowRange tile, const HeadGroup& group) const {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t row = tile.begin + r / group.heads;
      const std::int64_t head = group.first_head + r % group.heads;
      tile_.close(r, problem_.out.at(row, head), problem_.lse(row, head));
    }
  }

  const Problem& problem_;
  cpu::OnlineTile tile_;
  std::vector<Sight> sights_;
};

}  // namespace

void attend_window(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                   std::span<const TokenId> tokens, RowRange rows, const BlockTable& blocks, TensorView<float, 3> out,
                   TensorView<float, 2> lse, int threads, const RowsView* sink_queries) {
  require(out.stride(2) == 1, "attend_window writes rows of contiguous components");
  const Problem all{problem, grid, queries, tokens, blocks, out, lse, sink_queries};
  const TileKernels& kernels = cpu::tile_kernels();
  const std::int64_t most_tokens = cpu::tile_tokens(rows.size() * problem.kv_heads, problem.group(), threads);
  const std::vector<RowRange> tiles = cpu::cut_tiles(grid, tokens, rows, most_tokens);
  std::vector<WindowTile> workers(static_cast<std::size_t>(threads), WindowTile(all, kernels, most_tokens));
  const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * problem.kv_heads;
  // Last tiles first: they see the most keys.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = tasks - 1; task >= 0; --task) {
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(
        tiles[static_cast<std::size_t>(task / problem.kv_heads)], task % problem.kv_heads);
  }
}

}  // namespace ringmark::kernels
