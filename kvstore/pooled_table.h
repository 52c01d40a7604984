// The pooled keys and values of all ranks, on every rank: all queries read nearly all of them, and they are 1/rate of
// the keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/pool_chunks.h"
#include "partition/layout.h"
#include "partition/pool_grid.h"

namespace ringmark::kvstore {

class PooledTable {
 public:
  static std::int64_t bytes_of(const AttentionProblem& problem, std::int64_t rows) {
    return rows * kernels::pooled_row_floats(problem) * static_cast<std::int64_t>(sizeof(float));
  }

  // Collective. `own` are the rows of this rank's chunks in their order (kernels::pool_chunks). Holds the rows of all
  // ranks twice while it is made, once afterwards.
  PooledTable(comm::Communicator& communicator, const AttentionProblem& problem, const partition::PoolGrid& pools,
              const partition::Layout& layout, std::span<float> own);

  kernels::PooledKeys keys() const { return {rows_.data(), count_, head_dim_}; }

 private:
  std::int64_t count_;
  std::int64_t head_dim_;
  std::vector<float> rows_;  // [Hkv][K|V][rows][d]
};

// Rows of a rank's chunks.
std::int64_t pooled_rows_of(const partition::PoolGrid& pools, const partition::Layout& layout, RankId rank);

}  // namespace ringmark::kvstore
