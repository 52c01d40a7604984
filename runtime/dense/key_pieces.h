// The sequence cut into pieces, so that what a rank receives of one piece fits its budget.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/dense/team.h"

namespace ringmark::runtime::dense {

// Ascending ranges of chunks that cover the sequence, the same on every rank. No place needs more than `most` chunks of
// others out of one of them, or it is a single chunk.
std::vector<Range<ChunkId>> cut_pieces(const partition::SequenceGrid& grid, const Team& team, std::int64_t most);

}  // namespace ringmark::runtime::dense
