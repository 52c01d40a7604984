// How the rows of a shard are cut into tiles that walk the same chunks.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::cpu {

// Rows of consecutive tokens of one document, so that the chunks a tile walks are the chunks its rows see; and of one
// segment, where the document is cut into segments of so many tokens.
std::vector<RowRange> cut_tiles(const partition::SequenceGrid& grid, std::span<const TokenId> tokens, RowRange rows,
                                std::int64_t most_tokens,
                                std::int64_t segment = std::numeric_limits<std::int64_t>::max());

}  // namespace ringmark::kernels::cpu
