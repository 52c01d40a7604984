// The work of a rank: two layers counted by hand, then every kind of layer against counting row by row and key by key.
#include "cluster/planning/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cluster/planning/layer_plan.h"
#include "kernels/landmarks.h"
#include "partition/layout.h"

namespace ringmark::cluster {
namespace {

using partition::Balance;
using partition::Layout;
using partition::SequenceGrid;

struct Case {
  std::string name;
  AttentionProblem problem;
  AttentionPolicy policy;
};

AttentionProblem small(std::int64_t tokens, std::int64_t chunk, bool slots, std::vector<std::int64_t> starts = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 8;
  problem.chunk_size = chunk;
  problem.landmark_slots = slots;
  problem.cu_seqlens = std::move(starts);
  return problem;
}

// Row by row, from the questions of SequenceGrid alone.
RankWork brute_force(const Case& of, const SequenceGrid& grid, const Layout& layout, RankId rank) {
  const AttentionProblem& p = of.problem;
  const auto shape = kernels::LandmarkShape::of(p, of.policy.scorer);
  const double flops_of_key = 4.0 * static_cast<double>(p.heads * p.head_dim);
  RankWork work;
  for (const TokenId row : layout.tokens_of(rank)) {
    work.rows += 1;
    for (TokenId key(0); key <= row; ++key) {
      const bool sees = grid.window_of(row).contains(key) || grid.sinks_of(row).contains(key);
      if (sees && grid.is_key(key)) work.window_flops += flops_of_key;
    }
    double eligible = 0, remote = 0;
    for (ChunkId chunk = grid.eligible(row).begin; chunk < grid.eligible(row).end; ++chunk) {
      EXPECT_TRUE(grid.has_landmark(chunk));
      eligible += 1;
      remote += layout.owner(chunk) == rank ? 0 : 1;
    }
    const double chosen = std::min(eligible, static_cast<double>(of.policy.topk));
    work.score_flops += eligible * 2.0 * static_cast<double>(p.heads * shape.head_dim * shape.vectors);
    work.attend_flops += chosen * static_cast<double>(p.chunk_size - (p.landmark_slots ? 1 : 0)) * flops_of_key;
    if (eligible > 0) {  // a tile has 128 rows of 2 heads
      work.union_flops += chosen * expected_union_ratio({}, 64, chosen / eligible) *
                          static_cast<double>(p.chunk_size - (p.landmark_slots ? 1 : 0)) * flops_of_key;
    }
    if (eligible > 0) work.needs += chosen * remote / eligible * static_cast<double>(p.kv_heads);
  }
  return work;
}

std::vector<Case> cases() {
  AttentionPolicy plain;
  plain.window = 10;
  plain.topk = 3;
  AttentionPolicy no_window = plain, sinks = plain, wide = plain, none = plain, quest = plain, oracle = plain;
  no_window.window = 0;
  sinks.sinks = 6;
  wide.window = 10000;
  none.scorer = Scorer::kNone;
  none.sinks = 3;
  quest.scorer = Scorer::kQuest;
  oracle.scorer = Scorer::kOracle;
  const AttentionPolicy token = exact_window(7);
  AttentionPolicy segment = token;
  segment.edge = WindowEdge::kSegment;
  segment.segment = 5;
  return {{"plain", small(133, 4, false), plain},
          {"landmark_slots", small(133, 4, true), plain},
          {"no_window", small(90, 8, true), no_window},
          {"sinks", small(133, 4, true), sinks},
          {"wide", small(70, 4, true), wide},
          {"none", small(70, 4, true), none},
          {"quest", small(70, 4, false), quest},
          {"oracle", small(70, 4, false), oracle},
          {"packed", small(133, 4, true, {0, 3, 3, 61, 133}), plain},
          {"packed_sinks", small(133, 4, true, {0, 40, 81, 133}), sinks},
          {"exact_window", small(70, 4, false), token},
          {"exact_window_slots", small(70, 4, true), token},
          {"segment", small(70, 4, false), segment},
          {"one_token", small(1, 4, true), plain},
          {"fewer_tokens_than_ranks", small(2, 1, false), plain}};
}

class CountWork : public testing::TestWithParam<Case> {};

TEST_P(CountWork, EqualsCountingRowByRow) {
  const Case& of = GetParam();
  const SequenceGrid grid(of.problem, of.policy);
  for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
    for (const int ranks : {1, 2, 3, 5}) {
      const Layout layout = partition::make_layout(grid, ranks, balance);
      double visiting = 0, gathered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankWork work = count_work(of.problem, of.policy, grid, layout, RankId(rank), {});
        const RankWork expected = brute_force(of, grid, layout, RankId(rank));
        const std::string where = std::string(name_of(balance)) + " rank " + std::to_string(rank);
        EXPECT_EQ(work.rows, expected.rows) << where;
        EXPECT_EQ(work.window_flops, expected.window_flops) << where;
        EXPECT_EQ(work.score_flops, expected.score_flops) << where;
        EXPECT_EQ(work.attend_flops, expected.attend_flops) << where;
        EXPECT_NEAR(work.union_flops, expected.union_flops, 1e-9 * expected.union_flops) << where;
        EXPECT_NEAR(work.needs, expected.needs, 1e-9 * expected.needs) << where;
        visiting +=
            count_work(of.problem, of.policy, grid, layout, RankId(rank), {}, runtime::Merge::kScores).score_flops;
        gathered += work.score_flops;
      }
      // The same pairs, seen from the landmark's side.
      EXPECT_EQ(visiting, gathered) << name_of(balance) << " of " << ranks;
    }
  }
}

TEST_P(CountWork, DenseIsAWindowOverEverything) {
  Case of = GetParam();
  of.policy = {};
  of.policy.window = 100000;
  of.policy.scorer = Scorer::kNone;
  const SequenceGrid grid(of.problem, of.policy);
  const Layout layout = partition::make_layout(grid, 1, Balance::kContiguous);
  EXPECT_EQ(dense_flops(of.problem, grid), brute_force(of, grid, layout, RankId(0)).window_flops);
}

INSTANTIATE_TEST_SUITE_P(Layers, CountWork, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& of) { return of.param.name; });

// 8 tokens in chunks of 2, window 0, top 1, one head of one component, fp32: rows see 1, 2, 1, 2, ... keys; eligible
// are 0, 0, 1, 1, 2, 2, 3, 3 chunks.
TEST(CountWorkByHand, EightTokens) {
  AttentionProblem problem;
  problem.tokens = 8;
  problem.head_dim = 1;
  problem.chunk_size = 2;
  problem.dtype = DType::kFloat32;
  AttentionPolicy policy;
  policy.window = 0;
  policy.topk = 1;
  const SequenceGrid grid(problem, policy);
  const Layout one = partition::make_layout(grid, 1, Balance::kContiguous);
  const RankWork work = count_work(problem, policy, grid, one, RankId(0), {});
  EXPECT_EQ(work.rows, 8);
  EXPECT_EQ(work.chunk_bytes, 8 * 2 * 4);   // a key and a value of 4 bytes
  EXPECT_EQ(work.window_flops, 12 * 4);     // 4 x (1 + 2) keys
  EXPECT_EQ(work.table_bytes, 4 * 2 * 4);   // 4 chunks of a key and a bias in fp32
  EXPECT_EQ(work.score_flops, 12 * 2);      // 0+0+1+1+2+2+3+3 landmarks
  EXPECT_EQ(work.attend_flops, 6 * 2 * 4);  // 6 rows choose one chunk of 2 keys
  EXPECT_EQ(work.needs, 0);
  // Zigzag over 2 ranks: rank 0 has chunks 0 and 3. Rows of chunk 3 choose among 0, 1, 2, of which 1 and 2 are remote.
  const Layout two = partition::make_layout(grid, 2, Balance::kZigzag);
  const RankWork half = count_work(problem, policy, grid, two, RankId(0), {});
  EXPECT_EQ(half.rows, 4);
  EXPECT_EQ(half.score_flops, 6 * 2);
  EXPECT_NEAR(half.needs, 2 * 2.0 / 3.0, 1e-12);
  // Under `scores` it scores chunk 0 for the 6 rows behind it, chunk 3 for nobody.
  EXPECT_EQ(count_work(problem, policy, grid, two, RankId(0), {}, runtime::Merge::kScores).score_flops, 6 * 2);
  EXPECT_EQ(count_work(problem, policy, grid, two, RankId(1), {}, runtime::Merge::kScores).score_flops, 6 * 2);
}

TEST(Predict, IsALineAStage) {
  ComputeRates rates;
  rates.window = {1.0, 0.5, 0.25};
  rates.score = {0.0, 0.0, 2.0};
  rates.rest = {3.0, 0.0, 0.0};
  RankWork work;
  work.rows = 4;
  work.window_flops = 8;
  EXPECT_EQ(predict(work, rates).window, 1 + 2 + 2);
  EXPECT_EQ(predict(work, rates).total(), 5 + 3);  // nothing is scored
  EXPECT_EQ(predict(work, rates, 2.0).total(), 16);
  work.table_bytes = 1;
  work.score_flops = 10;
  EXPECT_EQ(predict(work, rates).score, 20);
  EXPECT_EQ(predict(RankWork{}, rates).total(), 0);
}

// Cores compute what a row chose, GPUs what its tile did.
TEST(Predict, GpusAttendUnions) {
  ComputeRates rates;
  rates.attend = {0.0, 0.0, 2.0};
  RankWork work;
  work.rows = work.table_bytes = 1;
  work.attend_flops = 10;
  work.union_flops = 30;
  EXPECT_EQ(predict(work, rates).attend, 20);
  rates.attends_unions = true;
  EXPECT_EQ(predict(work, rates).attend, 60);
}

// The chosen chunks of docs/performance.md on one H200, by agreement: 322 and 135 useful TFLOP/s measured.
TEST(Predict, AttendOfAnH200) {
  AttentionProblem problem;
  problem.tokens = 131072;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.landmark_slots = true;
  const AttentionPolicy policy;
  const SequenceGrid grid(problem, policy);
  const Layout layout = partition::make_layout(grid, 1, Balance::kZigzag);
  const auto rate = [&](const QueryModel& model) {
    const RankWork work = count_work(problem, policy, grid, layout, RankId(0), model);
    return work.attend_flops / predict(work, find_profile("h200").compute).attend;
  };
  EXPECT_NEAR(rate({0.98, 8, 64}) / 322e12, 1.0, 0.05);
  EXPECT_NEAR(rate({0.9, 8, 64}) / 135e12, 1.0, 0.15);
}

// Two of them where every query turns to a fresh direction: 70.7 ms measured.
TEST(PlanLayer, RandomChoiceOfTwoH200) {
  PlanRequest request;
  request.problem.tokens = 131072;
  request.problem.heads = 32;
  request.problem.kv_heads = 8;
  request.problem.head_dim = 128;
  request.problem.landmark_slots = true;
  request.profile = find_profile("h200");
  request.ranks_per_node = 2;
  request.memory_limit = request.profile.memory_of_rank(2);
  request.fetch_budget = request.memory_limit / 4;
  request.model = {0.0, 0, 64};
  EXPECT_NEAR(plan_layer(request).slowest_rank().seconds() / 0.0707, 1.0, 0.15);
}

// 16M tokens on 1024 ranks: the sum over ranks is that of one rank, in a moment.
TEST(CountWork16M, AddsUpOverTheRanks) {
  AttentionProblem problem;
  problem.tokens = std::int64_t{16} << 20;
  problem.heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.landmark_slots = true;
  const AttentionPolicy policy;
  const SequenceGrid grid(problem, policy);
  const RankWork whole =
      count_work(problem, policy, grid, partition::make_layout(grid, 1, Balance::kZigzag), RankId(0), {});
  const Layout layout = partition::make_layout(grid, 1024, Balance::kZigzag);
  RankWork sum;
  for (int rank = 0; rank < 1024; rank += 1) {
    const RankWork work = count_work(problem, policy, grid, layout, RankId(rank), {});
    sum.rows += work.rows;
    sum.score_flops += work.score_flops;
    sum.window_flops += work.window_flops;
    sum.attend_flops += work.attend_flops;
  }
  EXPECT_EQ(sum.rows, whole.rows);
  EXPECT_NEAR(sum.score_flops / whole.score_flops, 1.0, 1e-12);
  EXPECT_NEAR(sum.window_flops / whole.window_flops, 1.0, 1e-12);
  EXPECT_NEAR(sum.attend_flops / whole.attend_flops, 1.0, 1e-12);
}

}  // namespace
}  // namespace ringmark::cluster
