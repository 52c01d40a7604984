#include "kernels/pool_chunks.h"

#include <omp.h>

#include <algorithm>
#include <vector>

namespace ringmark::kernels {
namespace {

struct Scratch {
  std::vector<float> row;
  std::vector<double> sums;
};

// The mean of `count` rows of storage precision.
void write_mean(const std::byte* rows, const BlockShape& shape, std::int64_t count, Scratch& scratch, float* mean) {
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0);
  for (std::int64_t j = 0; j < count; ++j) {
    widen(rows + j * shape.row_bytes(), shape.dtype, shape.head_dim, scratch.row.data());
    for (std::size_t i = 0; i < scratch.sums.size(); ++i) scratch.sums[i] += scratch.row[i];
  }
  for (std::size_t i = 0; i < scratch.sums.size(); ++i) {
    mean[i] = static_cast<float>(scratch.sums[i] / static_cast<double>(count));
  }
}

}  // namespace

void pool_chunks(const AttentionProblem& problem, const partition::SequenceGrid& grid, const partition::PoolGrid& pools,
                 std::span<const ChunkId> chunks, const BlockTable& blocks, std::span<float> rows, int threads) {
  const BlockShape& shape = blocks.shape();
  std::vector<float*> first;  // row of each chunk
  float* next = rows.data();
  for (const ChunkId chunk : chunks) {
    first.push_back(next);
    next += pools.rows_of(chunk).size() * pooled_row_floats(problem);
  }
  const auto head_dim = static_cast<std::size_t>(problem.head_dim);
  std::vector<Scratch> scratches(static_cast<std::size_t>(threads),
                                 {std::vector<float>(head_dim), std::vector<double>(head_dim)});
  const auto count = static_cast<std::int64_t>(chunks.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (std::int64_t c = 0; c < count; ++c) {
    const ChunkId chunk = chunks[static_cast<std::size_t>(c)];
    Scratch& scratch = scratches[static_cast<std::size_t>(omp_get_thread_num())];
    float* mean = first[static_cast<std::size_t>(c)];
    for (std::int64_t row = 0; row < pools.rows_of(chunk).size(); ++row) {
      const Range<TokenId> keys = pools.keys_of(chunk, row);
      const std::int64_t offset = (keys.begin - grid.tokens_of(chunk).begin) * shape.row_bytes();
      for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head, mean += 2 * problem.head_dim) {
        write_mean(blocks.keys(chunk, kv_head) + offset, shape, keys.size(), scratch, mean);
        write_mean(blocks.values(chunk, kv_head) + offset, shape, keys.size(), scratch, mean + problem.head_dim);
      }
    }
  }
}

}  // namespace ringmark::kernels
