// Pooled keys and values: the mean of the keys, and of the values, of every group of consecutive slots of a chunk
// (partition/pool_grid.h says which groups there are). fp32; sums in fp64.
//     key = 1/n sum_j k_j,  value = 1/n sum_j v_j        j over the n keys of the group, per kv head
// Source: docs/numerics.md, "NSA" and "Compressive memory".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kernels/block_table.h"
#include "partition/pool_grid.h"

namespace ringmark::kernels {

// Floats of one pooled row as pool_chunks writes it: [Hkv][K|V][d].
inline std::int64_t pooled_row_floats(const AttentionProblem& problem) {
  return problem.kv_heads * 2 * problem.head_dim;
}

// Writes the rows of the listed chunks, all present in `blocks`, one behind the other: [rows][Hkv][K|V][d].
void pool_chunks(const AttentionProblem& problem, const partition::SequenceGrid& grid, const partition::PoolGrid& pools,
                 std::span<const ChunkId> chunks, const BlockTable& blocks, std::span<float> rows, int threads);

// Pooled rows of the whole sequence as attention reads them: [Hkv][K|V][rows][d], so that any run of rows is a block
// (kernels/block_table.h) whose values lie rows x d floats behind its keys. Non-owning.
struct PooledKeys {
  const float* first = nullptr;
  std::int64_t rows = 0;
  std::int64_t head_dim = 0;

  BlockShape shape() const { return {rows, head_dim, DType::kFloat32}; }
  // The key of a row; those of the rows behind it follow.
  const float* key(std::int64_t kv_head, std::int64_t row) const {
    return first + (kv_head * 2 * rows + row) * head_dim;
  }
  const std::byte* block(std::int64_t kv_head, std::int64_t row) const {
    return reinterpret_cast<const std::byte*>(key(kv_head, row));
  }
};

}  // namespace ringmark::kernels
