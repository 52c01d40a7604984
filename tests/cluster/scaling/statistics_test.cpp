#include "cluster/scaling/statistics.h"

#include <gtest/gtest.h>

namespace ringmark::cluster {
namespace {

TEST(ScalingStatistics, quantiles_lie_between_neighbours_in_proportion) {
  EXPECT_DOUBLE_EQ(quantile({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({50, 10, 20, 30, 40}, 0.95), 48);  // place 3.8: 40 + 0.8 * 10
  const Spread s = spread_of({3, 1, 2});
  EXPECT_DOUBLE_EQ(s.p50, 2);
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.max, 3);
}

TEST(ScalingStatistics, efficiency_by_hand) {
  EXPECT_DOUBLE_EQ(strong_efficiency(8, 1, 2, 4), 1);
  EXPECT_DOUBLE_EQ(strong_efficiency(8, 2, 4, 8), 0.5);  // relative to 2 nodes
  EXPECT_DOUBLE_EQ(weak_efficiency(3, 4), 0.75);
  EXPECT_DOUBLE_EQ(causal_pairs(4), 10);
  // 4 tokens on 1 node in 10 s, 8 tokens (36 pairs) on 2 nodes in 18 s: one pair a second and node both times.
  EXPECT_DOUBLE_EQ(weak_work_efficiency(10, 1, 4, 18, 2, 8), 1);
}

TEST(ScalingStatistics, efficiency_does_not_depend_on_the_unit_of_time) {
  EXPECT_DOUBLE_EQ(strong_efficiency(8000, 1, 3000, 4), strong_efficiency(8, 1, 3, 4));
}

}  // namespace
}  // namespace ringmark::cluster
