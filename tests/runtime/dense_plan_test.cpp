// What the strategies of dense attention decide before anything moves: who needs what, how it travels, what it costs.
#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "partition/layout.h"
#include "runtime/dense/cost_model.h"
#include "runtime/dense/head_shares.h"
#include "runtime/dense/key_pieces.h"
#include "runtime/dense/prefill.h"
#include "runtime/dense/ring_route.h"

namespace ringmark::runtime::dense {
namespace {

// Chunks of one token, so that chunk c is token c.
partition::SequenceGrid grid_of(std::int64_t tokens, const std::vector<std::int64_t>& cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = 1;
  problem.cu_seqlens = cu_seqlens;
  return {problem, whole_window(problem)};
}

Team team_of(const partition::SequenceGrid& grid, int ranks, partition::Balance balance) {
  const partition::Layout layout = partition::make_layout(grid, ranks, balance);
  Team team;
  for (int rank = 0; rank < ranks; ++rank) {
    team.ranks.push_back(rank);
    team.chunks.push_back(layout.chunks_of(RankId(rank)));
  }
  return team;
}

std::vector<std::int64_t> numbers(std::span<const ChunkId> chunks) {
  std::vector<std::int64_t> values;
  for (const ChunkId chunk : chunks) values.push_back(chunk.value());
  return values;
}

using Numbers = std::vector<std::int64_t>;

TEST(DenseTeam, only_earlier_chunks_of_the_same_document_are_needed) {
  // Documents 0-3 and 4-5; contiguous: rank 0 has 0-2, rank 1 has 3-5.
  const auto grid = grid_of(6, {0, 4, 6});
  const Team team = team_of(grid, 2, partition::Balance::kContiguous);
  EXPECT_EQ(numbers(needed_keys(grid, team, 1, 0)), (Numbers{0, 1, 2}));
  EXPECT_EQ(numbers(needed_keys(grid, team, 0, 1)), Numbers{});
  EXPECT_EQ(numbers(visiting_queries(grid, team, 1, 0)), (Numbers{3}));
  EXPECT_EQ(numbers(visiting_queries(grid, team, 0, 1)), Numbers{});
}

TEST(RingRoute, contiguous_shards_stop_before_the_first_place) {
  const auto grid = grid_of(6);
  const RingRoute route(grid, team_of(grid, 3, partition::Balance::kContiguous));
  EXPECT_EQ(route.direction(), 1);
  EXPECT_EQ((Numbers{route.travelling(0, 1), route.travelling(0, 2)}), (Numbers{2, 2}));
  EXPECT_EQ((Numbers{route.travelling(1, 1), route.travelling(1, 2)}), (Numbers{2, 0}));
  EXPECT_EQ((Numbers{route.travelling(2, 1), route.travelling(2, 2)}), (Numbers{0, 0}));
}

// Zigzag on 3 ranks: 0 has 0 and 5, 1 has 1 and 4, 2 has 2 and 3. Chunk 5 is needed nowhere, 4 at rank 0, 3 at ranks 0
// and 1: downward the late half stops there, upward it would pass rank 2 on its way.
TEST(RingRoute, zigzag_shards_travel_downwards_and_the_late_half_stops) {
  const auto grid = grid_of(6);
  const RingRoute route(grid, team_of(grid, 3, partition::Balance::kZigzag));
  EXPECT_EQ(route.direction(), -1);
  EXPECT_EQ(numbers(route.order(0)), (Numbers{0, 5}));
  EXPECT_EQ(numbers(route.order(1)), (Numbers{1, 4}));
  EXPECT_EQ(numbers(route.order(2)), (Numbers{2, 3}));
  EXPECT_EQ((Numbers{route.travelling(0, 1), route.travelling(0, 2)}), (Numbers{1, 1}));
  EXPECT_EQ((Numbers{route.travelling(1, 1), route.travelling(1, 2)}), (Numbers{2, 1}));
  EXPECT_EQ((Numbers{route.travelling(2, 1), route.travelling(2, 2)}), (Numbers{2, 2}));
}

TEST(KeyPieces, no_place_receives_more_than_it_may) {
  const auto grid = grid_of(8);
  const Team team = team_of(grid, 2, partition::Balance::kRotate);
  std::int64_t next = 0;
  for (const Range<ChunkId>& piece : cut_pieces(grid, team, 2)) {
    EXPECT_EQ(piece.begin, ChunkId(next));
    next = piece.end.value();
    EXPECT_EQ(piece.size(), 4);  // two of each rank
  }
  EXPECT_EQ(next, 8);
  EXPECT_EQ(cut_pieces(grid, team, 0).size(), 7u);  // one needed chunk each; the last is needed nowhere
  EXPECT_EQ(cut_pieces(grid, team, 100).size(), 1u);
}

TEST(HeadShares, hold_every_head_once_and_the_kv_heads_it_reads) {
  for (const auto& [heads, kv_heads] : {std::pair{28, 7}, {8, 1}, {40, 8}, {2, 2}, {1, 1}}) {
    AttentionProblem problem;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    for (const int ranks : {1, 2, 3, 5, 8}) {
      std::int64_t next = 0;
      for (int index = 0; index < ranks; ++index) {
        const HeadShare share = head_share(problem, index, ranks);
        EXPECT_EQ(share.heads.begin, next);
        EXPECT_LE(share.heads.size(), (heads + ranks - 1) / ranks);
        for (const kernels::HeadGroup& group : share.groups) {
          for (std::int64_t h = 0; h < group.heads; ++h, ++next) {
            EXPECT_EQ(share.kv_heads.begin + group.kv_head, next / problem.group());
            EXPECT_EQ(share.heads.begin + group.first_head + h, next);
          }
        }
      }
      EXPECT_EQ(next, heads);
    }
  }
}

TEST(HeadShares, groups_hold_no_kv_head_twice) {
  EXPECT_EQ(usual_ulysses_ranks(8, 8), 8);
  EXPECT_EQ(usual_ulysses_ranks(8, 4), 4);
  EXPECT_EQ(usual_ulysses_ranks(6, 4), 2);
  EXPECT_EQ(usual_ulysses_ranks(5, 8), 1);
  EXPECT_EQ(usual_ulysses_ranks(12, 9), 3);
}

// Llama 3 405B on four hosts, as in the paper that proposes the switch: 128 query heads, 8 kv heads, d 128, bf16.
Work long_prompt(std::int64_t fresh, std::int64_t cached) { return {4, fresh, cached, 128, 8, 128, 2}; }
constexpr Rates kCluster{25e9, 20e-6, 4e15, std::int64_t{1} << 30};

TEST(DenseCost, bytes_by_hand) {
  // 2 ranks, 100 tokens, 4 query heads, 2 kv heads, d 8, 2 bytes. Keys and values of a token: 2 * 2 * 8 * 2 = 64 bytes;
  // queries 64; partials 4 * 9 * 4 = 144.
  const Work work{2, 100, 0, 4, 2, 8, 2};
  EXPECT_EQ(cost_of(Strategy::kRing, 1, work, {}).bytes, 50 * 64);
  EXPECT_EQ(cost_of(Strategy::kAllGather, 1, work, {}).bytes, 50 * 64);
  EXPECT_EQ(cost_of(Strategy::kPassQ, 1, work, {}).bytes, 50 * (64 + 144));
  EXPECT_EQ(cost_of(Strategy::kUlysses, 2, work, {}).bytes, 50 * (64 + 64 + 144) / 2);
  // One kv head is held by both: its keys come whole.
  const Work shared{2, 100, 0, 4, 1, 8, 2};
  EXPECT_EQ(cost_of(Strategy::kUlysses, 2, shared, {}).bytes, 50 * (32 + (64 + 144) / 2));
  // With 100 cached tokens keys are twice as many, queries are not.
  const Work cached{2, 100, 100, 4, 2, 8, 2};
  EXPECT_EQ(cost_of(Strategy::kRing, 1, cached, {}).bytes, 100 * 64);
  EXPECT_EQ(cost_of(Strategy::kPassQ, 1, cached, {}).bytes, 50 * (64 + 144));
}

TEST(DenseCost, queries_travel_when_they_are_few_beside_the_cached_keys) {
  const auto exposed = [](Strategy strategy, std::int64_t fresh, std::int64_t cached) {
    return cost_of(strategy, 1, long_prompt(fresh, cached), kCluster).exposed;
  };
  EXPECT_LT(exposed(Strategy::kPassQ, 128, 128000), exposed(Strategy::kRing, 128, 128000));
  EXPECT_GT(exposed(Strategy::kPassQ, 128000, 0), exposed(Strategy::kRing, 128000, 0));
}

TEST(DenseCost, heads_that_do_not_divide_make_ulysses_wait_for_the_busiest) {
  const Work work{3, 3000, 0, 4, 4, 64, 2};  // 1, 1 and 2 heads
  const Rates rates;
  EXPECT_NEAR(cost_of(Strategy::kUlysses, 3, work, rates).attend, 1.5 * cost_of(Strategy::kRing, 1, work, rates).attend,
              1e-12);
}

TEST(DenseCost, auto_takes_the_cheapest_and_says_why) {
  const Work work{4, 131072, 0, 32, 8, 128, 2};
  const Choice choice = choose(Strategy::kAuto, 0, work, {});
  const double chosen = cost_of(choice.strategy, choice.ulysses_ranks, work, {}).seconds();
  for (const Strategy strategy : {Strategy::kRing, Strategy::kPassQ, Strategy::kAllGather, Strategy::kUlysses}) {
    EXPECT_LE(chosen, cost_of(strategy, strategy == Strategy::kUlysses ? 4 : 1, work, {}).seconds());
    EXPECT_NE(choice.why.find(name_of(strategy)), std::string::npos) << choice.why;
  }
  const Choice few = choose(Strategy::kAuto, 0, long_prompt(16, 1'000'000), kCluster);
  EXPECT_EQ(few.strategy, Strategy::kPassQ) << few.why;
  EXPECT_EQ(choose(Strategy::kAuto, 0, {1, 100, 0, 4, 2, 8, 2}, {}).strategy, Strategy::kRing);
}

TEST(DenseCost, forced_groups_divide_the_ranks) {
  const Work work{6, 100, 0, 4, 4, 8, 2};
  EXPECT_EQ(choose(Strategy::kRingUlysses, 3, work, {}).ulysses_ranks, 3);
  EXPECT_EQ(choose(Strategy::kRingUlysses, 0, work, {}).ulysses_ranks, 2);
  EXPECT_EQ(choose(Strategy::kUlysses, 0, work, {}).ulysses_ranks, 6);
  try {
    choose(Strategy::kRingUlysses, 4, work, {});
    ADD_FAILURE() << "4 does not divide 6";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_STREQ(error.what(), "ulysses-ranks = 4 does not divide the 6 ranks of the job");
  }
}

}  // namespace
}  // namespace ringmark::runtime::dense
