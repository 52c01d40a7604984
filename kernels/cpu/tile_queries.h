// The queries of a tile's rows as the attention kernels take them.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/head_group.h"

namespace ringmark::kernels::cpu {

// Widens the query heads of one group of a row, with the scale multiplied in: out [heads of the group][head_dim].
inline void widen_queries(const TileKernels& kernels, const RowsView& queries, std::int64_t row, const HeadGroup& group,
                          float scale, float* out) {
  const std::int64_t row_bytes = queries.head_dim * size_of(queries.dtype);
  kernels.widen_rows({queries.row(row, group.first_head), row_bytes, queries.dtype}, group.heads, queries.head_dim,
                     scale, out);
}

}  // namespace ringmark::kernels::cpu
