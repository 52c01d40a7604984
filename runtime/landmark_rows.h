// The landmark queries of chunks: those of their own where the layer brings some, else the retrieval queries at the
// last slots.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// Those of chunks that the shard has rows of: [chunks, H, d] in the dtype of the layer.
std::vector<std::byte> landmark_rows(const partition::SequenceGrid& grid, const partition::Layout& layout,
                                     std::span<const ChunkId> chunks, const LayerShard& shard);

// The row of the shard at which the last slot of one of its chunks stands.
std::int64_t last_row(const partition::SequenceGrid& grid, const partition::Layout& layout, ChunkId chunk);

}  // namespace ringmark::runtime
