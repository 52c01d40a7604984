// The ranks over which the sequence is split: all of them, or, where groups share heads, those that hold the same
// heads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime::dense {

struct Team {
  std::vector<int> ranks;                    // of the communicator, by place
  std::vector<std::vector<ChunkId>> chunks;  // by place, ascending
  int place = 0;                             // of this rank
  // By place: the tokens whose queries attend, ascending, where a strategy has to know them; empty: all of the chunks.
  std::vector<std::vector<TokenId>> attending = {};

  int size() const { return static_cast<int>(ranks.size()); }
  const std::vector<ChunkId>& own_chunks() const { return chunks_at(place); }
  const std::vector<ChunkId>& chunks_at(int at) const { return chunks[static_cast<std::size_t>(at)]; }
  // The place so many steps on; steps may be negative.
  int place_after(int from, int steps) const { return ((from + steps) % size() + size()) % size(); }
};

// Causality between places: some query at `place` sees keys of a chunk that another place holds when a later chunk of
// the document is at `place`.
bool needs_keys(const partition::SequenceGrid& grid, const Team& team, int place, ChunkId chunk);
// The other way round: queries of the chunk see keys at `place`.
bool finds_keys(const partition::SequenceGrid& grid, const Team& team, int place, ChunkId chunk);

// The chunks at `owner` whose keys `place` needs, ascending.
std::vector<ChunkId> needed_keys(const partition::SequenceGrid& grid, const Team& team, int place, int owner);
// The chunks at `from` whose queries find keys at `place`, ascending.
std::vector<ChunkId> visiting_queries(const partition::SequenceGrid& grid, const Team& team, int from, int place);

}  // namespace ringmark::runtime::dense
