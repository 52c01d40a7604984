#include "runtime/memory_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {
namespace {

AttentionProblem million() {
  AttentionProblem problem;
  problem.tokens = 1 << 20;
  problem.heads = 4;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  return problem;
}

// The first check, before a layout exists, says the same.
TEST(MemoryPlan, an_even_share_is_what_the_layouts_give) {
  const AttentionProblem problem = million();
  const partition::SequenceGrid grid(problem, AttentionPolicy{});
  for (const auto balance : {partition::Balance::kContiguous, partition::Balance::kZigzag}) {
    const ShardSize exact = shard_size(partition::make_layout(grid, 4, balance), RankId(2));
    EXPECT_EQ(exact.rows, even_share(grid, 4).rows);
    EXPECT_EQ(exact.chunks, even_share(grid, 4).chunks);
  }
}

// The bar: a million tokens on 4 ranks within 6 GiB in all.
TEST(MemoryPlan, a_million_tokens_fit_four_ranks) {
  const AttentionProblem problem = million();
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), 4, partition::Balance::kZigzag);
  std::int64_t total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    total += plan_memory(problem, policy, shard_size(layout, RankId(rank)), false, Merge::kLandmarks, {}).total();
  }
  EXPECT_LT(total, std::int64_t{6} << 30);
  EXPECT_GT(total, std::int64_t{1} << 30);  // it does count the output, 1 GiB
}

TEST(MemoryPlan, over_the_limit_names_the_numbers) {
  const AttentionProblem problem = million();
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), 1, partition::Balance::kZigzag);
  const MemoryPlan plan = plan_memory(problem, policy, shard_size(layout, RankId(0)), false, Merge::kLandmarks, {});
  check_memory(plan, plan.total(), RankId(0));
  try {
    check_memory(plan, plan.total() - 1, RankId(0));
    FAIL() << "a plan over the limit was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("output"), std::string::npos);
  }
}

}  // namespace
}  // namespace ringmark::runtime
