#include "kernels/choose_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

// Chunks of two tokens; document 0 holds chunks 0..5, document 1 chunks 6..7.
partition::SequenceGrid small_grid() {
  AttentionProblem problem;
  problem.tokens = 16;
  problem.chunk_size = 2;
  problem.cu_seqlens = {0, 12, 16};
  return {problem, {.window = 1, .topk = 0}};
}

std::vector<std::int32_t> choose(const partition::SequenceGrid& grid, TokenId query, std::int64_t topk, ChunkId first,
                                 const std::vector<float>& importance) {
  BlockChoice choice(topk);
  choice.start(grid, query);
  for (std::size_t c = 0; c < importance.size(); ++c) {
    choice.offer(first + static_cast<std::int64_t>(c), importance[c]);
  }
  std::vector<std::int32_t> slots(static_cast<std::size_t>(topk), 99);
  choice.write(slots);
  return slots;
}

using Ids = std::vector<std::int32_t>;

TEST(BlockChoice, forced_chunks_are_taken_whatever_their_importance) {
  const auto grid = small_grid();
  EXPECT_EQ(choose(grid, TokenId(11), 3, ChunkId(0), {0, 9, 9, 9, 0, 0}), (Ids{0, 4, 5}));
  EXPECT_EQ(choose(grid, TokenId(11), 4, ChunkId(0), {0, 1, 3, 2, 0, 0}), (Ids{0, 2, 4, 5}));
}

TEST(BlockChoice, chunks_that_are_forced_twice_take_one_slot) {
  const auto grid = small_grid();
  EXPECT_EQ(choose(grid, TokenId(0), 3, ChunkId(0), {}), (Ids{0, -1, -1}));
  EXPECT_EQ(choose(grid, TokenId(3), 4, ChunkId(0), {1, 1}), (Ids{0, 1, -1, -1}));
  EXPECT_EQ(choose(grid, TokenId(14), 3, ChunkId(6), {1}), (Ids{6, 7, -1}));  // not the chunk before, of document 0
}

TEST(BlockChoice, equal_importance_goes_by_id) {
  const auto grid = small_grid();
  EXPECT_EQ(choose(grid, TokenId(11), 4, ChunkId(0), {1, 1, 1, 1, 1, 1}), (Ids{0, 1, 4, 5}));
  EXPECT_EQ(choose(grid, TokenId(11), 5, ChunkId(0), {0, 1, 2, 2, 0, 0}), (Ids{0, 2, 3, 4, 5}));
  EXPECT_EQ(choose(grid, TokenId(11), 4, ChunkId(0), {0, 1, 2, 2, 0, 0}), (Ids{0, 2, 4, 5}));
}

TEST(BlockChoice, random_importances_match_a_sort) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    AttentionProblem problem;
    problem.tokens = static_cast<std::int64_t>(1 + random() % 40);
    problem.chunk_size = 1;
    const partition::SequenceGrid grid(problem, {.window = 1, .topk = 0});
    const auto query = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(problem.tokens));
    const auto topk = static_cast<std::int64_t>(3 + random() % 12);
    std::vector<float> importance;
    for (std::int32_t c = 0; c <= query; ++c) importance.push_back(static_cast<float>(random() % 5));
    std::set<std::int32_t> expected = {0, std::max(0, query - 1), query};
    std::vector<std::int32_t> order;
    for (std::int32_t c = 0; c <= query; ++c) order.push_back(c);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return importance[static_cast<std::size_t>(a)] > importance[static_cast<std::size_t>(b)];
    });
    for (const std::int32_t c : order) {
      if (std::ssize(expected) < topk) expected.insert(c);
    }
    Ids slots(expected.begin(), expected.end());
    slots.resize(static_cast<std::size_t>(topk), -1);
    ASSERT_EQ(choose(grid, TokenId(query), topk, ChunkId(0), importance), slots) << "trial " << trial;
  }
}

}  // namespace
}  // namespace ringmark::kernels
