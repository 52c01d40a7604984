#include "cluster/telemetry/wait_graph.h"

#include <gtest/gtest.h>

namespace ringmark::cluster {
namespace {

RankWait waits_for(std::vector<int> peers) {
  RankWait wait;
  wait.peers = std::move(peers);
  return wait;
}

using Ranks = std::vector<int>;

TEST(WaitGraph, one_rank_that_all_wait_for) {
  const auto verdict = judge_waits({{0, waits_for({3})}, {1, waits_for({3})}, {2, waits_for({3})}});
  EXPECT_EQ(verdict.roots, Ranks{3});
  EXPECT_EQ(verdict.waiting, (Ranks{0, 1, 2}));
  EXPECT_FALSE(verdict.is_circle);
}

// 0 waits for 1, which reads from 2, which waits for nobody: it all comes down to 2.
TEST(WaitGraph, chains_end_at_the_root) {
  const auto verdict = judge_waits({{0, waits_for({1})}, {1, waits_for({2})}, {3, waits_for({0, 1})}});
  EXPECT_EQ(verdict.roots, Ranks{2});
  EXPECT_EQ(verdict.waiting, (Ranks{0, 1, 3}));
}

TEST(WaitGraph, the_root_of_most_is_the_answer) {
  const auto verdict = judge_waits({{0, waits_for({4})}, {1, waits_for({5})}, {2, waits_for({5})}});
  EXPECT_EQ(verdict.roots, Ranks{5});
  EXPECT_EQ(verdict.waiting, (Ranks{1, 2}));
}

TEST(WaitGraph, two_roots_of_equally_many) {
  const auto verdict = judge_waits({{0, waits_for({2, 3})}, {1, waits_for({2, 3})}});
  EXPECT_EQ(verdict.roots, (Ranks{2, 3}));
}

TEST(WaitGraph, ranks_in_different_exchanges_wait_for_each_other) {
  const auto verdict = judge_waits({{0, waits_for({1})}, {1, waits_for({0})}, {2, waits_for({0})}});
  EXPECT_TRUE(verdict.is_circle);
  EXPECT_EQ(verdict.roots, (Ranks{0, 1}));
}

// A circle that itself waits for somebody is no cause.
TEST(WaitGraph, a_circle_with_a_way_out_has_a_root) {
  const auto verdict = judge_waits({{0, waits_for({1})}, {1, waits_for({0, 2})}});
  EXPECT_FALSE(verdict.is_circle);
  EXPECT_EQ(verdict.roots, Ranks{2});
  EXPECT_EQ(verdict.waiting, (Ranks{0, 1}));
}

TEST(WaitGraph, inside_mpi_nobody_can_tell) {
  const auto verdict = judge_waits({{0, waits_for({})}, {1, waits_for({})}});
  EXPECT_TRUE(verdict.roots.empty());
  EXPECT_EQ(verdict.not_told, (Ranks{0, 1}));
}

TEST(WaitGraph, nobody_waits) { EXPECT_TRUE(judge_waits({}).roots.empty()); }

}  // namespace
}  // namespace ringmark::cluster
