#include "kernels/attend_union.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_union.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  const Selection& selection;
  const BlockTable& blocks;
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
};

// The work of one thread: one tile of one group of heads at a time.
class UnionTile {
 public:
  UnionTile(const Problem& problem, std::int64_t most_tokens, std::int64_t most_heads)
      : problem_(problem),
        tile_(cpu::tile_kernels(), problem.shape, most_tokens * most_heads),
        chosen_(most_tokens, problem.selection.topk) {}

  void attend(RowRange tile, const ChoosingHeads& choosing) {
    chosen_.gather(problem_.selection, tile, choosing.chooser);
    if (chosen_.size() == 0) return;
    tile_.open(problem_.queries, tile, choosing.heads);
    for_each_row(tile, choosing.heads, [this](std::int64_t r, float* out, float& lse) { tile_.resume(r, out, lse); });
    for (std::int64_t i = 0; i < chosen_.size(); ++i) attend_chunk(i);
    for_each_row(tile, choosing.heads, [this](std::int64_t r, float* out, float& lse) { tile_.close(r, out, lse); });
  }

 private:
  void attend_chunk(std::int64_t i) {
    const ChunkId chunk = chosen_.chunk(i);
    const Range<TokenId> keys = problem_.grid.keys_of(chunk);
    auto member = chosen_.members(i).begin();
    const auto end = chosen_.members(i).end();
    const TokenId begin = problem_.grid.tokens_of(chunk).begin;
    tile_.attend(problem_.blocks, chunk, [&](std::int64_t n) {
      if (member == end || member->row != n) return cpu::KeyRun{};
      ++member;
      return cpu::KeyRun{keys.begin - begin, keys.end - begin};
    });
  }

  // Those that chose something.
  template <class Visit>
  void for_each_row(RowRange tile, const HeadGroup& group, Visit visit) {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t token = r / group.heads, head = group.first_head + r % group.heads;
      if (chosen_.chosen_by(token) == 0) continue;
      visit(r, problem_.out.at(tile.begin + token, head), problem_.lse(tile.begin + token, head));
    }
  }

  const Problem& problem_;
  cpu::OnlineTile tile_;
  cpu::ChunkUnion chosen_;
};

}  // namespace

void attend_union(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                  const Selection& selection, RowRange rows, const BlockTable& blocks, TensorView<float, 3> out,
                  TensorView<float, 2> lse, int threads) {
  require(out.stride(2) == 1, "attend_union writes rows of contiguous components");
  if (rows.empty() || selection.topk == 0) return;
  const Problem all{problem, grid, queries, selection, blocks, out, lse};
  const std::vector<ChoosingHeads> choosing = choosing_heads(problem, selection.choosers);
  const auto groups = static_cast<std::int64_t>(choosing.size());
  const std::int64_t heads = problem.heads / groups;
  const std::int64_t most_tokens = cpu::tile_tokens(rows.size() * groups, heads, threads);
  std::vector<UnionTile> workers(static_cast<std::size_t>(threads), UnionTile(all, most_tokens, heads));
  const std::int64_t tasks = (rows.size() + most_tokens - 1) / most_tokens * groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t first = rows.begin + task / groups * most_tokens;
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend({first, std::min(rows.end, first + most_tokens)},
                                                                   choosing[static_cast<std::size_t>(task % groups)]);
  }
}

}  // namespace ringmark::kernels
