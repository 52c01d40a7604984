// The geometry of many rows at once.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::cuda {

// Consecutive rows of a chunk whose geometry differs in `visible` alone, which grows by one a row.
struct RowRun {
  RowGeometry first;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

// Of all rows of a rank, in the order of its shard: few a chunk, so that a host lists them sooner than it could write
// every row.
std::vector<RowRun> row_runs(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank);

// rows [all rows of the runs] becomes what row_geometry() gives for their tokens.
void expand_row_runs(const RowRun* runs, std::int64_t count, RowGeometry* rows, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
