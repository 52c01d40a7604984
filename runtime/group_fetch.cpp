#include "runtime/group_fetch.h"

#include <algorithm>
#include <bit>
#include <span>

#include "core/error.h"
#include "kernels/block_table.h"

namespace ringmark::runtime {
namespace {

using Bits = std::span<const std::uint32_t>;  // of one group of rows: bit chunk * kv_heads + kv_head

void list_blocks(Bits bits, std::int64_t kv_heads, std::vector<BlockId>& blocks) {
  for (std::size_t word = 0; word < bits.size(); ++word) {
    for (std::uint32_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      const auto block = static_cast<std::int64_t>(word * 32) + std::countr_zero(rest);
      blocks.push_back({ChunkId(block / kv_heads), block % kv_heads});
    }
  }
}

// Every block of every rank, for the first group of rows and all after it.
RowNeeds everything(std::int64_t chunks, std::int64_t kv_heads) {
  return [=](std::int64_t group, std::vector<BlockId>& blocks) {
    if (group > 0) return false;
    for (ChunkId chunk(0); chunk.value() < chunks; ++chunk) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) blocks.push_back({chunk, kv_head});
    }
    return true;
  };
}

constexpr std::int64_t kMostGroupRows = 1024;
constexpr std::int64_t kShortestWave = 8192;                    // rows
constexpr std::int64_t kMostMarkBytes = std::int64_t{1} << 30;  // of all groups
constexpr std::int64_t kWavesWithRoom = 8;                      // enough that most of the fetch hides behind attention

// What any of the groups needs.
std::vector<std::uint32_t> join_groups(const std::vector<std::uint32_t>& marks, std::size_t words) {
  std::vector<std::uint32_t> joined(words, 0);
  for (std::size_t n = 0; n < marks.size(); ++n) joined[n % words] |= marks[n];
  return joined;
}

// The plan by groups of so many rows; throws when the budget is too small for one of them.
FetchPlan plan_by_groups(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                         std::size_t words, std::int64_t rows, std::int64_t group_rows,
                         const std::vector<std::uint32_t>& marks, std::int64_t budget) {
  const auto needs = [&](std::int64_t group, std::vector<BlockId>& blocks) {
    list_blocks(Bits(marks).subspan(static_cast<std::size_t>(group) * words, words), problem.kv_heads, blocks);
    return true;
  };
  return plan_fetch(problem, layout, rank, {0, (rows + group_rows - 1) / group_rows}, needs, budget,
                    kShortestWave / group_rows);
}

}  // namespace

std::int64_t words_of_marks(std::int64_t chunks, std::int64_t kv_heads) { return (chunks * kv_heads + 31) / 32; }

GroupFetch plan_group_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                            std::int64_t chunks, std::int64_t rows, Fetch asked, std::int64_t budget,
                            const MarkGroups& mark) {
  const auto words = static_cast<std::size_t>(words_of_marks(chunks, problem.kv_heads));
  // Groups as long as a wave first: where there is room for all that was chosen, no wave is cut, and what it needs is
  // all that the plan has to know.
  const std::int64_t wave = std::max(kShortestWave, (rows + kWavesWithRoom - 1) / kWavesWithRoom);
  GroupFetch fetch;
  fetch.group_rows = (wave + kMostGroupRows - 1) / kMostGroupRows * kMostGroupRows;
  std::vector<std::uint32_t> marks = mark(fetch.group_rows);
  std::vector<BlockId> chosen;
  list_blocks(join_groups(marks, words), problem.kv_heads, chosen);
  const auto remote = std::count_if(chosen.begin(), chosen.end(),
                                    [&](const BlockId& block) { return layout.owner(block.chunk) != rank; });
  const std::int64_t block_bytes = kernels::BlockShape::of(problem).bytes();
  const auto own = static_cast<std::int64_t>(layout.chunks_of(rank).size());
  const std::int64_t remote_bytes = (chunks - own) * problem.kv_heads * block_bytes;

  fetch.decision = choose_fetch(asked, remote * block_bytes, remote_bytes, budget);
  if (fetch.decision.fetch == Fetch::kStream) {
    // One wave that nothing evicts: it may use the whole budget.
    const std::int64_t groups = (rows + fetch.group_rows - 1) / fetch.group_rows;
    fetch.plan =
        plan_fetch(problem, layout, rank, {0, groups}, everything(chunks, problem.kv_heads), 2 * budget, groups);
    return fetch;
  }
  if (2 * remote * block_bytes > budget) {
    fetch.group_rows = kMostGroupRows;
    marks = mark(fetch.group_rows);
  }
  while (true) {
    try {
      fetch.plan = plan_by_groups(problem, layout, rank, words, rows, fetch.group_rows, marks, budget);
      return fetch;
    } catch (const Error& error) {
      const std::int64_t fewer = fetch.group_rows / 32;
      const bool marks_fit = fewer > 0 && rows / fewer * static_cast<std::int64_t>(words) * 4 <= kMostMarkBytes;
      if (error.code() != ExitCode::kBadInput || !marks_fit) throw;
      fetch.group_rows = fewer;
      marks = mark(fewer);
    }
  }
}

}  // namespace ringmark::runtime
