#include "runtime/row_needs.h"

#include <algorithm>

#include "kernels/head_group.h"

namespace ringmark::runtime {

using kernels::Selection;
using partition::SequenceGrid;

// Window and sink blocks. Queries of one chunk whose windows begin in one chunk need the same blocks: sinks that reach
// into that chunk come with it.
RowNeeds window_needs(const AttentionProblem& problem, const SequenceGrid& grid, const std::vector<TokenId>& tokens) {
  return [&problem, &grid, &tokens, last = Range<ChunkId>{ChunkId(-1), ChunkId(-1)}](
             std::int64_t row, std::vector<BlockId>& needs) mutable {
    const TokenId query = tokens[static_cast<std::size_t>(row)];
    const Range<TokenId> window = grid.window_of(query);
    const Range<ChunkId> chunks{grid.chunk_of(window.begin), grid.chunk_of(query) + 1};
    if (chunks == last) return false;
    last = chunks;
    const Range<TokenId> sinks = grid.sinks_of(query);
    const auto add = [&](Range<ChunkId> range) {
      for (ChunkId chunk = range.begin; chunk < range.end; ++chunk) {
        for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) needs.push_back({chunk, kv_head});
      }
    };
    if (!sinks.empty()) {
      add({grid.chunk_of(sinks.begin), std::min(grid.chunk_of(sinks.end - 1) + 1, chunks.begin)});
    }
    add(chunks);
    return true;
  };
}

RowNeeds chosen_needs(const AttentionProblem& problem, const Selection& selection, std::int64_t first) {
  return [&selection, first, choosing = kernels::choosing_heads(problem, selection.choosers)](
             std::int64_t row, std::vector<BlockId>& needs) {
    const auto slots = static_cast<std::size_t>(selection.choosers * selection.topk);
    const std::int32_t* all = selection.chunks.data() + row * static_cast<std::int64_t>(slots);
    if (row > first && std::equal(all, all + slots, all - slots)) return false;
    for (const kernels::ChoosingHeads& of : choosing) {
      for (const std::int32_t chunk : selection.chosen(row, of.chooser)) {
        needs.push_back({ChunkId(chunk), of.heads.kv_head});
      }
    }
    return true;
  };
}

std::int64_t most_chunks_of_a_row(const AttentionProblem& problem, const AttentionPolicy& policy,
                                  const SequenceGrid& grid) {
  std::int64_t longest = 0;
  for (const partition::Document& document : grid.documents()) longest = std::max(longest, document.chunks.size());
  // Tokens of the longest window.
  const std::int64_t tokens = policy.window + (policy.edge == WindowEdge::kSegment ? policy.segment : 0);
  const std::int64_t window = tokens > 0 ? (tokens - 1) / problem.chunk_size + 1 : 0;
  const std::int64_t sinks = (policy.sinks + problem.chunk_size - 1) / problem.chunk_size;
  const std::int64_t lists = std::max<std::int64_t>(1, policy.choosers(problem) / problem.kv_heads);  // of a kv head
  const std::int64_t chosen = policy.selects() ? lists * policy.topk : 0;
  return std::min(longest, std::max(window + sinks, chosen));
}

std::vector<ChunkId> chosen_in(const Selection& selection, RowRange rows) {
  std::vector<ChunkId> chunks;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
      for (const std::int32_t chunk : selection.chosen(row, chooser)) chunks.emplace_back(chunk);
    }
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

}  // namespace ringmark::runtime
