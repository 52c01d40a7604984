#include "cluster/simulation/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/simulation/flows.h"
#include "cluster/simulation/study.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kManyFlows = 1 << 20;
constexpr double kNear = 1e-7;

LinkRate link(double rate, double latency) {
  LinkRate link;
  link.streamed = link.scattered = rate;
  link.latency = latency;
  return link;
}

Topology topology_of(int nodes, int ranks_per_node = 1) {
  Topology topology;
  topology.nodes = nodes;
  topology.ranks_per_node = ranks_per_node;
  topology.inside = link(1e9, 0.0);
  topology.outside = link(1e8, 0.0);
  return topology;
}

Step waves(std::vector<SimulatedWave> of) {
  Step step{Step::kWaves, Stage::kAttend, Stage::kFetch};
  step.waves = std::move(of);
  return step;
}

class ReplayTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_replay()) GTEST_SKIP() << "built without SimGrid";
  }
};

#ifdef RINGMARK_HAS_SIMGRID
TEST(ReplayModule, is_found_by_what_was_built_beside_it) { EXPECT_TRUE(can_replay()); }
#endif

TEST_F(ReplayTest, one_transfer_takes_latency_and_bytes_over_bandwidth) {
  Topology topology = topology_of(2);
  topology.outside.latency = 0.25;
  const Replay result = replay(topology, {{{waves({{{{1, 100'000'000, 1}}, 0.0}})}}, {}}, kManyFlows);
  EXPECT_NEAR(result.seconds, 1.25, kNear);
  EXPECT_NEAR(result.ranks[0].at(Stage::kFetch), 1.25, kNear);
  EXPECT_EQ(result.outside_bytes, 100'000'000);
  EXPECT_EQ(result.inside_bytes, 0);
}

TEST_F(ReplayTest, two_readers_share_the_card_of_their_owner) {
  const RankSchedule reads{{waves({{{{2, 100'000'000, 1}}, 0.0}})}};
  EXPECT_NEAR(replay(topology_of(3), {reads, reads, {}}, kManyFlows).seconds, 2.0, kNear);
  // Joined flows know what the owner serves.
  EXPECT_NEAR(replay(topology_of(3), {reads, reads, {}}, 0).seconds, 2.0, kNear);
}

TEST_F(ReplayTest, two_ranks_of_a_node_share_its_card_unless_each_has_its_own) {
  const RankSchedule reads_2{{waves({{{{2, 100'000'000, 1}}, 0.0}})}}, reads_3{{waves({{{{3, 100'000'000, 1}}, 0.0}})}};
  Topology topology = topology_of(2, 2);
  EXPECT_NEAR(replay(topology, {reads_2, reads_3, {}, {}}, kManyFlows).seconds, 2.0, kNear);
  topology.rails = 2;
  EXPECT_NEAR(replay(topology, {reads_2, reads_3, {}, {}}, kManyFlows).seconds, 1.0, kNear);
}

TEST_F(ReplayTest, inside_a_node_ports_carry_what_cards_do_not) {
  const Replay result = replay(topology_of(1, 2), {{{waves({{{{1, 100'000'000, 1}}, 0.0}})}}, {}}, kManyFlows);
  EXPECT_NEAR(result.seconds, 0.1, kNear);
  EXPECT_EQ(result.inside_bytes, 100'000'000);
}

TEST_F(ReplayTest, an_uplink_that_is_oversubscribed_is_shared) {
  Topology topology = topology_of(4);
  topology.leaf_nodes = 2;
  topology.oversubscription = 4.0;  // two nodes of 1e8 have 5e7 together
  const RankSchedule from_2{{waves({{{{2, 100'000'000, 1}}, 0.0}})}}, from_3{{waves({{{{3, 100'000'000, 1}}, 0.0}})}};
  EXPECT_NEAR(replay(topology, {from_2, from_3, {}, {}}, kManyFlows).seconds, 4.0, kNear);
}

TEST_F(ReplayTest, overlap_hides_the_shorter_of_computing_and_moving) {
  for (const double computing : {0.25, 1.0, 3.0}) {
    const std::vector<SimulatedWave> two = {{{}, computing}, {{{1, 100'000'000, 1}}, 0.5}};
    const Replay result = replay(topology_of(2), {{{waves(two)}}, {}}, kManyFlows);
    EXPECT_NEAR(result.seconds, std::max(computing, 1.0) + 0.5, kNear);
    EXPECT_NEAR(result.ranks[0].at(Stage::kFetch), std::max(0.0, 1.0 - computing), kNear);
  }
}

TEST_F(ReplayTest, ranks_share_the_cores_of_one_machine) {
  Topology topology = topology_of(4);
  topology.shared_cores = 2;
  const std::vector<RankSchedule> schedules(4, {{compute_step(Stage::kScore, 1.0)}});
  EXPECT_NEAR(replay(topology, schedules, kManyFlows).seconds, 2.0, kNear);
  topology.shared_cores = 0;
  EXPECT_NEAR(replay(topology, schedules, kManyFlows).seconds, 1.0, kNear);
}

TEST_F(ReplayTest, who_is_early_waits_at_the_meeting) {
  const std::vector<RankSchedule> schedules = {{{compute_step(Stage::kScore, 1.0), meet_step()}},
                                               {{compute_step(Stage::kScore, 3.0), meet_step()}}};
  const Replay result = replay(topology_of(2), schedules, kManyFlows);
  EXPECT_NEAR(result.ranks[0].at(Stage::kMeet), 2.0, kNear);
  EXPECT_NEAR(result.ranks[1].at(Stage::kMeet), 0.0, kNear);
  EXPECT_NEAR(result.seconds, 3.0, kNear);
}

TEST_F(ReplayTest, names_of_nodes_do_not_matter) {
  const std::vector<RankSchedule> one = {
      {{waves({{{{1, 70'000'000, 2}, {2, 50'000'000, 1}}, 0.1}})}}, {{waves({{{{2, 90'000'000, 1}}, 0.0}})}}, {}};
  // Rank r of `one` is rank (r + 1) mod 3.
  const std::vector<RankSchedule> other = {
      {}, {{waves({{{{2, 70'000'000, 2}, {0, 50'000'000, 1}}, 0.1}})}}, {{waves({{{{0, 90'000'000, 1}}, 0.0}})}}};
  const Replay a = replay(topology_of(3), one, kManyFlows), b = replay(topology_of(3), other, kManyFlows);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_NEAR(a.ranks[rank].end, b.ranks[(rank + 1) % 3].end, kNear);
}

TEST(LinkBytes, scattered_reads_hold_a_link_longer) {
  LinkRate rate = link(100.0, 0.0);
  rate.scattered = 50.0;
  rate.request = 0.5;
  EXPECT_DOUBLE_EQ(link_bytes(rate, 200, 2, false), 500.0);  // 4 s of bytes and 1 s of reads
  EXPECT_DOUBLE_EQ(link_bytes(rate, 200, 0, true), 200.0);
}

TEST(Rate, strong_and_weak_by_hand) {
  Point one, four;
  one.ranks = 1;
  one.seconds = 8.0;
  one.compute_seconds = 7.0;
  one.mean[static_cast<std::size_t>(Stage::kScore)] = 7.0;
  one.mean[static_cast<std::size_t>(Stage::kRest)] = 1.0;
  four = one;
  four.ranks = 4;
  four.seconds = 2.75;
  four.mean[static_cast<std::size_t>(Stage::kScore)] = 1.75;
  std::vector<Point> points = {one, four};
  rate(points, Scaling::kStrong);
  EXPECT_DOUBLE_EQ(points[0].efficiency, 1.0);
  EXPECT_FALSE(points[0].held_by.has_value());
  EXPECT_DOUBLE_EQ(points[1].efficiency, 8.0 / 11.0);
  EXPECT_EQ(points[1].held_by, Stage::kRest);
  EXPECT_DOUBLE_EQ(points[1].lost[static_cast<std::size_t>(Stage::kRest)], 0.75);
  EXPECT_EQ(first_below(points, 0.9), &points[1]);
  rate(points, Scaling::kWeak);
  EXPECT_DOUBLE_EQ(points[1].efficiency, 8.0 / 2.75);
}

}  // namespace
}  // namespace ringmark::cluster
