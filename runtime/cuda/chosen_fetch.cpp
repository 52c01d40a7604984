#include "runtime/cuda/chosen_fetch.h"

#include <vector>

#include "kernels/cuda/selection.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::NeededBlocks;

// The marks of all groups, [groups][words].
std::vector<std::uint32_t> mark(const kernels::cuda::LayerShape& shape, std::int64_t rows, std::int64_t group_rows,
                                Workspace& workspace) {
  const std::int64_t groups = (rows + group_rows - 1) / group_rows;
  const std::int64_t count = groups * NeededBlocks::words_of(shape);
  std::uint32_t* device = Workspace::reserve(workspace.needed_blocks, count);
  kernels::cuda::mark_needed_blocks(shape, workspace.selection.data(), {0, rows}, {group_rows, device},
                                    workspace.stream);
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(count));
  workspace.needed_blocks.download(bits.data(), count, workspace.stream);
  workspace.stream.wait();
  return bits;
}

}  // namespace

GroupFetch plan_chosen_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                             const kernels::cuda::LayerShape& shape, std::int64_t rows, Fetch asked,
                             std::int64_t budget, Workspace& workspace) {
  return plan_group_fetch(problem, layout, rank, shape.chunk_count, rows, asked, budget,
                          [&](std::int64_t group_rows) { return mark(shape, rows, group_rows, workspace); });
}

}  // namespace ringmark::runtime::cuda
