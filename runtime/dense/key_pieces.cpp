#include "runtime/dense/key_pieces.h"

#include <algorithm>
#include <cstddef>

namespace ringmark::runtime::dense {

std::vector<Range<ChunkId>> cut_pieces(const partition::SequenceGrid& grid, const Team& team, std::int64_t most) {
  std::vector<int> owner(static_cast<std::size_t>(grid.chunk_count()));
  for (int place = 0; place < team.size(); ++place) {
    for (const ChunkId chunk : team.chunks_at(place)) owner[static_cast<std::size_t>(chunk.value())] = place;
  }
  std::vector<Range<ChunkId>> pieces;
  std::vector<std::int64_t> received(static_cast<std::size_t>(team.size()), 0);  // of the piece at hand, by place
  ChunkId begin(0);
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    bool full = false;
    for (int place = 0; place < team.size(); ++place) {
      const bool remote = owner[static_cast<std::size_t>(chunk.value())] != place;
      std::int64_t& count = received[static_cast<std::size_t>(place)];
      if (remote && needs_keys(grid, team, place, chunk)) full = ++count > most || full;
    }
    if (!full || chunk == begin) continue;
    pieces.push_back({begin, chunk});
    begin = chunk;
    chunk = chunk - 1;  // counted again, as the first of the next piece
    std::fill(received.begin(), received.end(), 0);
  }
  pieces.push_back({begin, ChunkId(grid.chunk_count())});
  return pieces;
}

}  // namespace ringmark::runtime::dense
