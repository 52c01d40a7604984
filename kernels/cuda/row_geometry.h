// The geometry of many rows, in memory that the caller has.
#pragma once

#include <span>

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// As row_geometry(): rows[n] of tokens[n].
void fill_row_geometry(const partition::SequenceGrid& grid, std::span<const TokenId> tokens, RowGeometry* rows);

}  // namespace ringmark::kernels::cuda
