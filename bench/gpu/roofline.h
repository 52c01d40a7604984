// What a layer has to do, counted from its geometry, and how fast an H200 can do it.
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::bench {

// Dense bf16 rate that attention reaches on this chip, its copy rate (read and written), and the rate of scores that
// are two fp16 products each: half of what the tensor cores give a large product.
inline constexpr double kTensorRate = 650e12;
inline constexpr double kCopyRate = 4.2e12;
inline constexpr double kTwoTermRate = 390e12;

struct Work {
  double window_keys = 0.0;      // (row, visible key) pairs
  double eligible_chunks = 0.0;  // (row, eligible chunk) pairs
};

// Of tokens [first, end).
inline Work count_work(const partition::SequenceGrid& grid, std::int64_t first, std::int64_t end) {
  double keys = 0.0, chunks = 0.0;
#pragma omp parallel for reduction(+ : keys, chunks) schedule(static)
  for (std::int64_t token = first; token < end; ++token) {
    keys += static_cast<double>(grid.window_of(TokenId(token)).size());
    chunks += static_cast<double>(grid.eligible(TokenId(token)).size());
  }
  return {keys, chunks};
}

}  // namespace ringmark::bench
