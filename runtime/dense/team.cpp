#include "runtime/dense/team.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace ringmark::runtime::dense {

bool needs_keys(const partition::SequenceGrid& grid, const Team& team, int place, ChunkId chunk) {
  const std::vector<ChunkId>& there = team.chunks_at(place);
  const auto later = std::upper_bound(there.begin(), there.end(), chunk);
  return later != there.end() && *later < grid.document_of(chunk).chunks.end;
}

bool finds_keys(const partition::SequenceGrid& grid, const Team& team, int place, ChunkId chunk) {
  const std::vector<ChunkId>& there = team.chunks_at(place);
  const auto earliest = std::lower_bound(there.begin(), there.end(), grid.document_of(chunk).chunks.begin);
  return earliest != there.end() && *earliest < chunk;
}

std::vector<ChunkId> needed_keys(const partition::SequenceGrid& grid, const Team& team, int place, int owner) {
  std::vector<ChunkId> needed;
  std::copy_if(team.chunks_at(owner).begin(), team.chunks_at(owner).end(), std::back_inserter(needed),
               [&](ChunkId chunk) { return needs_keys(grid, team, place, chunk); });
  return needed;
}

std::vector<ChunkId> visiting_queries(const partition::SequenceGrid& grid, const Team& team, int from, int place) {
  std::vector<ChunkId> visiting;
  std::copy_if(team.chunks_at(from).begin(), team.chunks_at(from).end(), std::back_inserter(visiting),
               [&](ChunkId chunk) { return finds_keys(grid, team, place, chunk); });
  return visiting;
}

}  // namespace ringmark::runtime::dense
