#include "kernels/pool_chunks.h"

#include <gtest/gtest.h>

#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

std::vector<float> pool(const AttentionCase& c, const partition::PoolGrid& pools, int threads) {
  std::vector<ChunkId> chunks;
  for (ChunkId chunk(0); chunk.value() < c.grid.chunk_count(); ++chunk) chunks.push_back(chunk);
  std::vector<float> rows(static_cast<std::size_t>(pools.rows() * pooled_row_floats(c.problem)), kNaN);
  pool_chunks(c.problem, c.grid, pools, chunks, c.blocks.table(), rows, threads);
  return rows;
}

TEST(PoolChunks, means_worked_by_hand) {
  AttentionProblem problem;
  problem.tokens = 5;
  problem.head_dim = 1;
  problem.chunk_size = 4;
  problem.dtype = DType::kFloat32;
  problem.landmark_slots = true;
  const partition::SequenceGrid grid(problem, {.window = 1, .topk = 0});
  const StoredBlocks blocks(problem, grid, {1, 3, 10, 1000, 7}, {2, 8, -4, 1000, 7});
  const partition::PoolGrid pools(problem, grid, 2);
  ASSERT_EQ(pools.rows(), 2);  // 1000 is a landmark slot, 7 is alone in its group
  const std::vector<ChunkId> chunks = {ChunkId(0), ChunkId(1)};
  std::vector<float> rows(4, kNaN);
  pool_chunks(problem, grid, pools, chunks, blocks.table(), rows, 1);
  EXPECT_EQ(rows, (std::vector<float>{2, 5, 10, -4}));
}

// 1023 ones behind 2^24: a sum in fp32 would stay where it is.
TEST(PoolChunks, sums_are_fp64) {
  AttentionProblem problem;
  problem.tokens = 1024;
  problem.head_dim = 1;
  problem.chunk_size = 1024;
  problem.dtype = DType::kFloat32;
  const partition::SequenceGrid grid(problem, {.window = 1, .topk = 0});
  std::vector<float> values(1024, 1.0f);
  values[0] = 16777216.0f;
  const StoredBlocks blocks(problem, grid, values, values);
  std::vector<float> rows(2);
  pool_chunks(problem, grid, partition::PoolGrid(problem, grid, 1024), std::vector<ChunkId>{ChunkId(0)}, blocks.table(),
              rows, 1);
  EXPECT_EQ(rows[0], static_cast<float>((16777216.0 + 1023.0) / 1024.0));
}

TEST(PoolChunks, random_layers_match_fp64_with_any_threads) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, {.window = 1, .topk = 0}, random());
    std::vector<std::int64_t> rates;
    for (std::int64_t rate = 1; rate <= problem.chunk_size; ++rate) {
      if (problem.chunk_size % rate == 0) rates.push_back(rate);
    }
    const partition::PoolGrid pools(c.problem, c.grid, pick(random, rates));
    const std::vector<float> rows = pool(c, pools, 1);
    ASSERT_TRUE(same_bits(rows, pool(c, pools, 3)));
    const float* mean = rows.data();
    for (ChunkId chunk(0); chunk.value() < c.grid.chunk_count(); ++chunk) {
      for (std::int64_t row = 0; row < pools.rows_of(chunk).size(); ++row) {
        const Range<TokenId> keys = pools.keys_of(chunk, row);
        for (std::int64_t part = 0; part < 2 * problem.kv_heads; ++part, mean += problem.head_dim) {
          const StoredTensor& tensor = part % 2 == 0 ? c.keys : c.values;
          std::vector<double> sum(static_cast<std::size_t>(problem.head_dim));
          for (TokenId token = keys.begin; token < keys.end; ++token) {
            const std::vector<float> key = tensor.row(token.value(), part / 2);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += key[i];
          }
          for (std::size_t i = 0; i < sum.size(); ++i) {
            ASSERT_EQ(mean[i], static_cast<float>(sum[i] / static_cast<double>(keys.size()))) << "trial " << trial;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels
