#include "runtime/selector.h"

#include <gtest/gtest.h>

namespace ringmark::runtime {
namespace {

MergeCost cost_of(std::int64_t tokens, int ranks) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 1;
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), ranks, partition::Balance::kZigzag);
  return merge_cost(problem, policy, layout);
}

// By hand: 131072 tokens are 2048 chunks; a record is 4 heads x (64 + 1) floats = 1040 bytes; three of four ranks'
// tables travel. Visiting queries cost 32768 rows x 4 heads x 3 ranks x (128 bytes of query + 16 x 8 of list + 24 of
// sum).
TEST(MergeCost, by_hand) {
  const MergeCost cost = cost_of(131072, 4);
  EXPECT_EQ(cost.table_bytes, 2048 * 1040);
  EXPECT_EQ(cost.landmark_bytes, 1536 * 1040);
  EXPECT_EQ(cost.score_bytes, 98304LL * 4 * 128 + 32768LL * 4 * 3 * (128 + 24));
}

TEST(ChooseMerge, prefill_gathers_landmarks_unless_they_do_not_fit) {
  const MergeCost cost = cost_of(131072, 4);
  EXPECT_EQ(choose_merge(Merge::kAuto, cost, std::int64_t{1} << 30), Merge::kLandmarks);
  EXPECT_EQ(choose_merge(Merge::kAuto, cost, cost.table_bytes - 1), Merge::kScores);
  EXPECT_EQ(choose_merge(Merge::kScores, cost, std::int64_t{1} << 30), Merge::kScores);
  EXPECT_EQ(choose_merge(Merge::kLandmarks, cost, 0), Merge::kLandmarks);  // forced
}

// Few new queries over many chunks: cheaper to let the queries visit.
TEST(ChooseMerge, few_queries_visit) {
  const MergeCost cost{.landmark_bytes = 1000, .score_bytes = 999, .table_bytes = 2000};
  EXPECT_EQ(choose_merge(Merge::kAuto, cost, 4000), Merge::kScores);
}

}  // namespace
}  // namespace ringmark::runtime
