#include "kernels/attend_selected.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_union.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

// Rows whose union of chunks is gathered together: more of them share a packed chunk less often.
constexpr std::int64_t kTileTokens = 64;

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const Selection& selection;
  const BlockTable& blocks;
  const GatedRows& into;
  TensorView<float, 2> lse;
};

// The work of one thread: one tile of one kv head at a time.
class SelectedTile {
 public:
  SelectedTile(const Problem& problem, std::int64_t most_tokens)
      : problem_(problem),
        tile_(cpu::tile_kernels(), problem.shape, most_tokens * problem.shape.group()),
        chosen_(most_tokens, problem.selection.topk),
        visible_(static_cast<std::size_t>(most_tokens)),
        branch_(static_cast<std::size_t>(problem.shape.head_dim)) {}

  void attend(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    const HeadGroup heads{kv_head, kv_head * group, group};
    tile_.open(problem_.queries, tile, heads);
    chosen_.gather(problem_.selection, tile, kv_head);
    for (std::int64_t i = 0; i < chosen_.size(); ++i) attend_chunk(tile, i);
    close(tile, heads);
  }

 private:
  void attend_chunk(RowRange tile, std::int64_t i) {
    const Range<TokenId> keys = problem_.grid.keys_of(chosen_.chunk(i));
    std::fill(visible_.begin(), visible_.end(), 0);
    for (const cpu::ChunkUnion::Member& member : chosen_.members(i)) {
      const TokenId query = problem_.tokens[static_cast<std::size_t>(tile.begin + member.row)];
      visible_[static_cast<std::size_t>(member.row)] = intersect(keys, {keys.begin, query + 1}).size();
    }
    tile_.attend(problem_.blocks, chosen_.chunk(i), [&](std::int64_t n) {
      return cpu::KeyRun{0, visible_[static_cast<std::size_t>(n)]};
    });
  }

  void close(RowRange tile, const HeadGroup& group) {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t row = tile.begin + r / group.heads;
      const std::int64_t head = group.first_head + r % group.heads;
      tile_.close(r, branch_.data(), problem_.lse(row, head));
      problem_.into.add(row, head, branch_.data());
    }
  }

  const Problem& problem_;
  cpu::OnlineTile tile_;
  cpu::ChunkUnion chosen_;
  std::vector<std::int64_t> visible_;  // keys of the chunk at hand, by token
  std::vector<float> branch_;
};

}  // namespace

void attend_selected(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                     std::span<const TokenId> tokens, const Selection& selection, RowRange rows,
                     const BlockTable& blocks, const GatedRows& into, TensorView<float, 2> lse, int threads) {
  if (rows.empty()) return;
  const Problem all{problem, grid, queries, tokens, selection, blocks, into, lse};
  const std::int64_t most_tokens =
      std::min(kTileTokens, cpu::tile_tokens(rows.size() * problem.kv_heads, problem.group(), threads));
  std::vector<SelectedTile> workers(static_cast<std::size_t>(threads), SelectedTile(all, most_tokens));
  const std::int64_t tasks = (rows.size() + most_tokens - 1) / most_tokens * problem.kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t first = rows.begin + task / problem.kv_heads * most_tokens;
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend({first, std::min(rows.end, first + most_tokens)},
                                                                   task % problem.kv_heads);
  }
}

}  // namespace ringmark::kernels
