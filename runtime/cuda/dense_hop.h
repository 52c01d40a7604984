// What a rank does with the keys of one owner when it attends exactly to those of all ranks: which of them it needs,
// and which rows see which. Pure: it can be tested without a GPU.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime::cuda {

struct DenseHop {
  int owner = 0;
  std::vector<ChunkId> keys;  // the owner's chunks that some row here sees, ascending
  // For the window kernels, with chunks counted in `keys`: on any layout those that a row sees lie side by side there.
  std::vector<kernels::cuda::RowGeometry> rows;      // of all rows of this rank
  std::vector<kernels::cuda::ChunkGeometry> chunks;  // of keys
  std::vector<RowRange> seeing;                      // the rows that see a key
};

// `grid` and `geometry` (of all chunks) are those of dense::whole_window().
DenseHop plan_dense_hop(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank, int owner,
                        std::span<const kernels::cuda::ChunkGeometry> geometry);

}  // namespace ringmark::runtime::cuda
