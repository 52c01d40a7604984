// The queries of a tile's rows as the attention kernels take them.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/cpu/attend_tile.h"

namespace ringmark::kernels::cpu {

// Widens the query heads of one kv head of a row, with the scale multiplied in: out [group][head_dim].
inline void widen_queries(const TileKernels& kernels, const RowsView& queries, std::int64_t row, std::int64_t kv_head,
                          std::int64_t group, float scale, float* out) {
  const std::int64_t row_bytes = queries.head_dim * size_of(queries.dtype);
  kernels.widen_rows({queries.row(row, kv_head * group), row_bytes, queries.dtype}, group, queries.head_dim, scale,
                     out);
}

}  // namespace ringmark::kernels::cpu
