#include "runtime/cuda/dense_hop.h"

#include <algorithm>

#include "runtime/dense/team.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::RowGeometry;
using partition::SequenceGrid;

std::vector<ChunkId> keys_from(const SequenceGrid& grid, const partition::Layout& layout, RankId rank, int owner) {
  if (RankId(owner) == rank) return layout.chunks_of(rank);
  dense::Team team;
  team.place = static_cast<int>(rank.value());
  for (int place = 0; place < layout.ranks(); ++place) {
    team.ranks.push_back(place);
    team.chunks.push_back(layout.chunks_of(RankId(place)));
  }
  return dense::needed_keys(grid, team, team.place, owner);
}

// Chunks of the document up to `own`, as places in `keys`.
Range<std::int32_t> seen_from(const SequenceGrid& grid, const std::vector<ChunkId>& keys, ChunkId own) {
  const auto first = std::lower_bound(keys.begin(), keys.end(), grid.document_of(own).chunks.begin);
  const auto end = std::upper_bound(first, keys.end(), own);
  return {static_cast<std::int32_t>(first - keys.begin()), static_cast<std::int32_t>(end - keys.begin())};
}

}  // namespace

DenseHop plan_dense_hop(const SequenceGrid& grid, const partition::Layout& layout, RankId rank, int owner,
                        std::span<const kernels::cuda::ChunkGeometry> geometry) {
  DenseHop hop{owner, keys_from(grid, layout, rank, owner), {}, {}, {}};
  for (const ChunkId chunk : hop.keys) hop.chunks.push_back(geometry[static_cast<std::size_t>(chunk.value())]);
  hop.rows.resize(static_cast<std::size_t>(layout.token_count(rank)));
  for (const ChunkId own : layout.chunks_of(rank)) {
    const Range<std::int32_t> seen = seen_from(grid, hop.keys, own);
    if (seen.empty()) continue;
    const std::int64_t begin = layout.first_row(own), end = begin + grid.tokens_of(own).size();
    // The chunk of a row is the last one that it sees, whole unless it is the row's own.
    const bool ends_in_own = hop.keys[static_cast<std::size_t>(seen.end - 1)] == own;
    for (std::int64_t row = begin; row < end; ++row) {
      RowGeometry& of_row = hop.rows[static_cast<std::size_t>(row)];
      of_row.chunk = seen.end - 1;
      of_row.visible = static_cast<std::int32_t>(ends_in_own ? row - begin + 1 : grid.chunk_size());
      of_row.window_first = seen.begin;
    }
    if (!hop.seeing.empty() && hop.seeing.back().end == begin) {
      hop.seeing.back().end = end;
    } else {
      hop.seeing.push_back({begin, end});
    }
  }
  return hop;
}

}  // namespace ringmark::runtime::cuda
