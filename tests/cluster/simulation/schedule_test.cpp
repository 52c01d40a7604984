#include <gtest/gtest.h>

#include <set>

#include "cluster/simulation/layer_schedule.h"
#include "cluster/simulation/replay.h"
#include "cluster/simulation/simulate_options.h"
#include "core/error.h"
#include "kvstore/block_store.h"
#include "runtime/group_fetch.h"

namespace ringmark::cluster {
namespace {

LayerJob job_of(std::int64_t tokens) {
  LayerJob job;
  job.problem.tokens = tokens;
  job.problem.heads = 4;
  job.problem.kv_heads = 2;
  job.problem.chunk_size = 16;
  job.problem.landmark_slots = true;
  job.policy.window = 32;
  job.policy.topk = 4;
  job.turns.needles = 4;
  return job;
}

MachineProfile profile_of(const std::string& backend) {
  MachineProfile profile;
  profile.backend = backend;
  profile.memory_bytes = std::int64_t{1} << 40;
  profile.compute.score.unit = profile.compute.attend.unit = profile.compute.dense.unit = 1e-10;
  return profile;
}

Topology topology_of(int nodes, double rate) {
  Topology topology;
  topology.nodes = nodes;
  topology.inside.streamed = topology.inside.scattered = rate;
  topology.outside = topology.inside;
  return topology;
}

TEST(LayerSchedule, bytes_are_those_of_the_planner) {
  for (const std::string backend : {"cpu", "cuda"}) {
    for (const Arm arm : kArms) {
      const LayerSchedules schedules = schedule_layer(job_of(4000), arm, topology_of(3, 1e9), profile_of(backend));
      std::int64_t received = 0;
      for (const RankSchedule& rank : schedules.ranks) received += rank.received_bytes();
      EXPECT_EQ(received, schedules.bytes_fetched + schedules.bytes_merged) << backend << name_of(arm);
      EXPECT_GT(received, 0);
    }
  }
}

TEST(LayerSchedule, a_ring_of_two_moves_what_causality_leaves) {
  LayerJob job = job_of(64);  // 4 chunks, contiguous: rank 1 reads the 2 of rank 0 and rank 0 nothing
  job.balance = partition::Balance::kContiguous;
  const LayerSchedules schedules = schedule_layer(job, Arm::kRing, topology_of(2, 1e9), profile_of("cuda"));
  EXPECT_EQ(schedules.ranks[0].received_bytes(), 0);
  EXPECT_EQ(schedules.ranks[1].received_bytes(), kvstore::BlockStore::bytes_of(job.problem, 2));
}

TEST(LayerSchedule, one_rank_moves_nothing) {
  for (const Arm arm : kArms) {
    EXPECT_EQ(schedule_layer(job_of(4000), arm, topology_of(1, 1e9), profile_of("cuda")).bytes_fetched, 0);
  }
}

TEST(TurnSelection, marks_and_needs_agree_and_choose_what_is_eligible) {
  for (const std::int64_t topics : {0, 3}) {
    LayerJob job = job_of(2000);
    job.turns.topics = topics;
    const partition::SequenceGrid grid(job.problem, job.policy);
    const partition::Layout layout = partition::make_layout(grid, 2, partition::Balance::kZigzag);
    const TurnSelection selection(job.problem, job.policy, grid, job.turns);
    const runtime::RowNeeds needs = selection.needs(layout, RankId(1));
    const std::vector<TokenId> tokens = layout.tokens_of(RankId(1));
    std::set<std::int64_t> all;
    std::vector<runtime::BlockId> blocks, listed;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      listed.clear();
      if (needs(static_cast<std::int64_t>(row), listed)) blocks = listed;
      const Range<ChunkId> eligible = grid.eligible(tokens[row]);
      EXPECT_EQ(std::ssize(blocks), 2 * std::min(job.policy.topk, eligible.size()));
      for (const runtime::BlockId& block : blocks) {
        EXPECT_TRUE(eligible.contains(block.chunk)) << row;
        all.insert(block.chunk.value() * 2 + block.kv_head);
      }
    }
    std::set<std::int64_t> marked;
    const std::vector<std::uint32_t> bits = selection.marks(layout, RankId(1), 256);
    const auto words = static_cast<std::size_t>(runtime::words_of_marks(grid.chunk_count(), 2));
    for (std::size_t word = 0; word < bits.size(); ++word) {
      for (int bit = 0; bit < 32; ++bit) {
        if (bits[word] >> bit & 1u) marked.insert(static_cast<std::int64_t>(word % words) * 32 + bit);
      }
    }
    EXPECT_EQ(all, marked);
  }
}

TEST(Simulation, more_bandwidth_is_never_slower_and_endless_links_hide_everything) {
  if (!can_replay()) GTEST_SKIP() << "built without SimGrid";
  double before = 1e9;
  for (const double rate : {1e6, 1e8, 1e10, 1e18}) {
    const Topology topology = topology_of(4, rate);
    const double seconds =
        replay(topology, schedule_layer(job_of(4000), Arm::kSparse, topology, profile_of("cuda")).ranks, 1000).seconds;
    EXPECT_LE(seconds, before * (1 + 1e-9));
    before = seconds;
  }
  const LayerSchedules alone = schedule_layer(job_of(4000), Arm::kSparse, topology_of(1, 1e9), profile_of("cuda"));
  EXPECT_GE(before * 4, alone.compute_seconds * (1 - 1e-6));
  EXPECT_LE(before * 4, alone.compute_seconds * 1.1);  // zigzag leaves little imbalance
}

TEST(SimulateOptions, series) {
  EXPECT_EQ(parse_series("1..16*2,3", "nodes", 1, 64), (std::vector<std::int64_t>{1, 2, 3, 4, 8, 16}));
  EXPECT_EQ(parse_series("1k", "tokens", 1, 4096), (std::vector<std::int64_t>{1024}));
  for (const std::string wrong : {"", "0", "1,", "x", "1..4*1", "65", "1..x"}) {
    EXPECT_THROW(parse_series(wrong, "nodes", 1, 64), Error) << wrong;
  }
}

TEST(SimulateOptions, refuses_what_it_cannot_simulate) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--arms", "star"}, {"--topology", "shared"}, {"--nodes", "4096", "--ranks-per-node", "8"}, {"--mode", "big"}};
  for (const auto& arguments : wrong) EXPECT_THROW(parse_simulate_options(arguments, {}), Error) << arguments[1];
}

// 131072 tokens where every query turns to a fresh direction, on two H200 (docs/performance.md): 70.7 ms measured.
TEST(SimulatePoint, random_choice_on_two_h200) {
  if (!can_replay()) GTEST_SKIP() << "built without SimGrid";
  const SimulateOptions options = parse_simulate_options(
      {"--tokens", "128k", "--nodes", "1", "--ranks-per-node", "2", "--agreement", "0", "--topics", "0"}, {});
  const Point point = simulate_point(options.job, Arm::kSparse, options.topology, options.profile, options.flow_limit);
  EXPECT_NEAR(point.seconds / 0.0707, 1.0, 0.15);
}

}  // namespace
}  // namespace ringmark::cluster
