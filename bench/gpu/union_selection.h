// A selection made for its union ratio: how many times the chunks of one query the queries of a tile choose together.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/sequence_grid.h"

namespace ringmark::bench {

// [tokens, kv_heads, topk], ids ascending, -1 behind them; one document. Tiles are tile_queries consecutive tokens.
// The queries of a tile share topk chunks and (ratio - 1) * topk spare ones, each of which takes the place of one of a
// query's chunks with probability 1/2: from eight queries on, any part of a tile needs all of them. Tiles of 16 draw
// from the same chunks, four times topk, as neighbours in a text do: what is measured is the kernel, not HBM. The
// number of chunks that a row chooses does not depend on the ratio, up to 4.
std::vector<std::int32_t> select_with_union(const partition::SequenceGrid& grid, std::int64_t kv_heads,
                                            std::int64_t topk, std::int64_t tile_queries, double ratio);

}  // namespace ringmark::bench
