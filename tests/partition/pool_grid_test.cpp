#include "partition/pool_grid.h"

#include <gtest/gtest.h>

#include <random>

namespace ringmark::partition {
namespace {

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, bool landmark_slots,
                            std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  problem.landmark_slots = landmark_slots;
  problem.cu_seqlens = std::move(cu_seqlens);
  problem.validate();
  return problem;
}

AttentionPolicy window_only() {
  AttentionPolicy policy;
  policy.scorer = Scorer::kNone;
  return policy;
}

// 10 tokens in chunks of 4, groups of 2: the last chunk has one group.
TEST(PoolGrid, groups_of_a_partial_chunk_that_are_whole_are_rows) {
  const AttentionProblem problem = problem_of(10, 4, false);
  const SequenceGrid grid(problem, window_only());
  const PoolGrid pools(problem, grid, 2);
  EXPECT_EQ(pools.rows(), 5);
  EXPECT_EQ(pools.rows_of(ChunkId(1)), (RowRange{2, 4}));
  EXPECT_EQ(pools.rows_of(ChunkId(2)), (RowRange{4, 5}));
  EXPECT_EQ(pools.keys_of(ChunkId(1), 1), (Range<TokenId>{TokenId(6), TokenId(8)}));
  EXPECT_EQ(pools.row_at(grid.documents()[0], 3), 3);
  EXPECT_EQ(pools.row_at(grid.documents()[0], 5), 5);
}

// Landmark slots 3 and 7: the second group of their chunks holds one key.
TEST(PoolGrid, a_landmark_slot_is_no_key_of_its_group) {
  const AttentionProblem problem = problem_of(9, 4, true);
  const SequenceGrid grid(problem, window_only());
  EXPECT_EQ(PoolGrid(problem, grid, 4).rows(), 2);
  EXPECT_EQ(PoolGrid(problem, grid, 4).keys_of(ChunkId(1), 0), (Range<TokenId>{TokenId(4), TokenId(7)}));
  EXPECT_EQ(PoolGrid(problem, grid, 2).keys_of(ChunkId(0), 1), (Range<TokenId>{TokenId(2), TokenId(3)}));
}

// With groups of one slot the landmark slot makes none: document 0 is k k L k, document 1 k k L.
TEST(PoolGrid, a_group_without_keys_has_no_row) {
  const AttentionProblem problem = problem_of(7, 3, true, {0, 4, 7});
  const SequenceGrid grid(problem, window_only());
  const PoolGrid pools(problem, grid, 1);
  const auto& documents = grid.documents();
  EXPECT_EQ(pools.rows(), 5);
  EXPECT_EQ(pools.row_at(documents[0], 2), 2);
  EXPECT_EQ(pools.row_at(documents[0], 3), 2);
  EXPECT_EQ(pools.row_at(documents[0], 4), 3);
  EXPECT_EQ(pools.row_at(documents[1], 0), 3);
  EXPECT_EQ(pools.row_at(documents[1], 3), 5);
}

// Slot by slot: a group counts when all its slots are in the document and one of them is a key.
TEST(PoolGrid, random_documents_match_a_count_by_slots) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t rate = std::vector<std::int64_t>{1, 2, 3, 4}[random() % 4];
    const std::int64_t chunk_size = rate * static_cast<std::int64_t>(1 + random() % 4);
    const auto tokens = static_cast<std::int64_t>(1 + random() % 60);
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tokens + 1));
    const AttentionProblem problem =
        problem_of(tokens, chunk_size, chunk_size > 1 && random() % 2 == 0, {0, cut, cut, tokens});
    const SequenceGrid grid(problem, window_only());
    const PoolGrid pools(problem, grid, rate);
    std::int64_t rows = 0;
    for (const Document& document : grid.documents()) {
      for (std::int64_t group = 0; (group + 1) * rate <= document.tokens.size(); ++group) {
        ASSERT_EQ(pools.row_at(document, group), rows) << "trial " << trial << " group " << group;
        bool has_key = false;
        for (std::int64_t slot = group * rate; slot < (group + 1) * rate; ++slot) {
          has_key |= grid.is_key(document.tokens.begin + slot);
        }
        rows += has_key ? 1 : 0;
      }
      ASSERT_EQ(pools.row_at(document, document.tokens.size() / rate), rows) << "trial " << trial;
    }
    EXPECT_EQ(pools.rows(), rows);
  }
}

}  // namespace
}  // namespace ringmark::partition
