#include "runtime/window_fetch.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/block_table.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime {
namespace {

using partition::Balance;

constexpr std::int64_t kRoom = std::int64_t{1} << 40;

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = 8;
  problem.heads = problem.kv_heads = 2;
  return problem;
}

std::set<BlockId> blocks_of(const FetchPlan& plan) {
  std::set<BlockId> blocks;
  for (const FetchWave& wave : plan.waves) {
    for (const FetchRun& run : wave.runs) blocks.insert(run.blocks.begin(), run.blocks.end());
  }
  return blocks;
}

// 8 chunks on 2 ranks: rank 0 has 0, 1, 6, 7. A window of 9 tokens begins at most one chunk further back.
TEST(WindowFetch, zigzag_reads_the_chunk_before_its_second_half) {
  const AttentionProblem problem = problem_of(64);
  const AttentionPolicy policy{9, 2, 0, Scorer::kHils};
  const partition::SequenceGrid grid(problem, policy);
  const auto layout = partition::make_layout(grid, 2, Balance::kZigzag);
  const WindowFetch fetch = plan_window_fetch(problem, grid, layout, RankId(0), kRoom);
  EXPECT_EQ(fetch.group_rows, 32);
  ASSERT_EQ(fetch.plan.waves.size(), 1u);
  EXPECT_EQ(blocks_of(fetch.plan), (std::set<BlockId>{{ChunkId(5), 0}, {ChunkId(5), 1}}));
}

TEST(WindowFetch, reads_what_the_rows_need_one_by_one) {
  AttentionProblem packed = problem_of(203);
  packed.cu_seqlens = {0, 3, 4, 90, 90, 203};
  for (const AttentionProblem& problem : {problem_of(1), problem_of(203), packed}) {
    for (const AttentionPolicy& policy : {AttentionPolicy{0, 2, 0, Scorer::kHils},
                                          {1, 2, 0, Scorer::kHils},
                                          {20, 2, 5, Scorer::kHils},
                                          {33, 2, 19, Scorer::kHils}}) {
      const partition::SequenceGrid grid(problem, policy);
      for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
        for (const int ranks : {1, 2, 3, 7}) {
          const auto layout = partition::make_layout(grid, ranks, balance);
          for (RankId rank(0); rank < RankId(ranks); ++rank) {
            const std::vector<TokenId> tokens = layout.tokens_of(rank);
            const auto rows = static_cast<std::int64_t>(tokens.size());
            const FetchPlan by_rows =
                plan_fetch(problem, layout, rank, {0, rows}, window_needs(problem, grid, tokens), kRoom);
            const WindowFetch fetch = plan_window_fetch(problem, grid, layout, rank, kRoom);
            EXPECT_EQ(blocks_of(fetch.plan), blocks_of(by_rows)) << ranks << " ranks, rank " << rank.value();
            EXPECT_EQ(fetch.plan.blocks, by_rows.blocks);
          }
        }
      }
    }
  }
}

// Two rows' needs fit, all of them do not.
TEST(WindowFetch, goes_row_by_row_where_room_is_short) {
  const AttentionProblem problem = problem_of(640);
  const AttentionPolicy policy{9, 2, 0, Scorer::kHils};
  const partition::SequenceGrid grid(problem, policy);
  const auto layout = partition::make_layout(grid, 2, Balance::kRotate);
  const std::int64_t budget = 8 * kernels::BlockShape::of(problem).bytes();
  const WindowFetch fetch = plan_window_fetch(problem, grid, layout, RankId(1), budget);
  EXPECT_EQ(fetch.group_rows, 1);
  EXPECT_GT(fetch.plan.waves.size(), 1u);
  EXPECT_LE(fetch.plan.slots, 8);
}

}  // namespace
}  // namespace ringmark::runtime
