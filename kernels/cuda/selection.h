// What the runtime asks of a selection that stays on the device.
#pragma once

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// Which blocks groups of consecutive rows chose: bit (chunk * kv_heads + kv_head) of group n, counted from the first
// row of the range, in words of 32. selection is [rows of the rank, Hkv, topk].
struct NeededBlocks {
  std::int64_t group_rows = 1024;
  std::uint32_t* bits = nullptr;  // [groups][words]

  static std::int64_t words_of(const LayerShape& shape) {
    return (std::int64_t{shape.chunk_count} * shape.kv_heads + 31) / 32;
  }
};
// Clears the bits, then sets those of the rows.
void mark_needed_blocks(const LayerShape& shape, const std::int32_t* selection, RowRange rows,
                        const NeededBlocks& needed, cudaStream_t stream);

// Adds the digest of kernels::selection_digest over all rows to *digest. tokens [rows].
void add_selection_digest(const LayerShape& shape, const std::int32_t* selection, const std::int64_t* tokens,
                          std::int64_t rows, unsigned long long* digest, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
