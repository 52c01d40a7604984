#include "runtime/planted_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "comm/block_transport.h"
#include "comm/thread_ranks.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {
namespace {

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  return problem;
}

// Every rank count makes the same rows.
TEST(PlantedLayer, input_does_not_depend_on_the_rank_count) {
  const AttentionProblem problem = problem_of(1000);
  const AttentionPolicy policy;
  const PlantedLayer layer(problem, policy, {});
  const partition::SequenceGrid grid(problem, policy);
  std::map<std::int64_t, std::vector<std::byte>> rows;  // q row by token
  for (const int ranks : {1, 3}) {
    const partition::Layout layout = partition::make_layout(grid, ranks, partition::Balance::kZigzag);
    for (int rank = 0; rank < ranks; ++rank) {
      const LayerShard shard = layer.make_shard(layout, RankId(rank), 1 + rank);
      const auto tokens = layout.tokens_of(RankId(rank));
      for (std::size_t row = 0; row < tokens.size(); ++row) {
        const std::byte* q = shard.queries().row(static_cast<std::int64_t>(row), 0);
        const std::byte* k = shard.keys().row(static_cast<std::int64_t>(row), 0);
        std::vector<std::byte> bytes(q, q + 4 * 64 * 2);
        bytes.insert(bytes.end(), k, k + 64 * 2);
        const auto [entry, fresh] = rows.emplace(tokens[row].value(), bytes);
        ASSERT_EQ(entry->second, bytes) << "token " << tokens[row];
      }
    }
  }
}

// agreement 1: one direction for all but the questions and the needles' landmarks; 0: a new one each token.
TEST(PlantedLayer, agreement_is_the_share_of_equal_neighbours) {
  const AttentionProblem problem = problem_of(4000);
  const AttentionPolicy policy;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, policy), 1, partition::Balance::kContiguous);
  for (const double agreement : {0.0, 0.5, 0.98, 1.0}) {
    const LayerShard shard = PlantedLayer(problem, policy, {0, agreement, 0, 1}).make_shard(layout, RankId(0), 1);
    int equal = 0;
    for (std::int64_t row = 1; row < 4000; ++row) {
      const std::byte* q = shard.queries().row(row, 0);
      equal += std::equal(q, q + 512, q - 512);
    }
    EXPECT_NEAR(equal / 3999.0, agreement, 0.03);
  }
}

NeedleCount recover(std::int64_t tokens, int ranks, const AttentionPolicy& policy) {
  const AttentionProblem problem = problem_of(tokens);
  NeedleCount count;
  std::mutex lock;
  comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    const partition::SequenceGrid grid(problem, policy);
    const partition::Layout layout = partition::make_layout(grid, ranks, partition::Balance::kZigzag);
    const RankId rank(communicator.rank());
    const PlantedLayer layer(problem, policy, {});
    LayerShard shard = layer.make_shard(layout, rank, 1);
    const auto chosen = comm::choose_transport(communicator, comm::TransportChoice::kAuto);
    SilentProgress progress;
    const PrefillResult result = prefill(communicator, *chosen.transport, problem, policy, layout, shard, {}, progress);
    const NeedleCount mine = layer.count_recovered(communicator, layout.tokens_of(rank), result.out);
    const std::scoped_lock hold(lock);
    count = mine;
  });
  return count;
}

TEST(PlantedLayer, all_needles_are_recovered) {
  for (const int ranks : {1, 3}) {
    const NeedleCount count = recover(16384, ranks, AttentionPolicy{});
    EXPECT_EQ(count.planted, 64);
    EXPECT_EQ(count.recovered, 64);
  }
}

// The check can fail: without selection no needle can be seen; and a small sequence has room for few.
TEST(PlantedLayer, blind_attention_recovers_nothing) {
  AttentionPolicy blind;
  blind.scorer = Scorer::kMean;  // averages the one needle key away
  const NeedleCount count = recover(16384, 1, blind);
  EXPECT_EQ(count.planted, 64);
  EXPECT_LT(count.recovered, 32);
  EXPECT_EQ(recover(200, 1, AttentionPolicy{}).planted, 0);
  const NeedleCount few = recover(500, 1, AttentionPolicy{});
  EXPECT_GT(few.planted, 0);
  EXPECT_LT(few.planted, 8);
  EXPECT_EQ(few.recovered, few.planted);
}

// Whoever holds the token; even over (0, 1) but for the questions, which need all keys.
TEST(PlantedLayer, gates_depend_on_the_token_alone) {
  const AttentionProblem problem = problem_of(4000);
  const PlantedLayer layer(problem, {}, {.needles = 16});
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < 4000; ++token) tokens.emplace_back(token);
  const std::vector<float> gates = layer.gates(tokens);
  double sum = 0.0;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    EXPECT_GT(gates[n], 0.0f);
    EXPECT_LT(gates[n], 1.0f);
    EXPECT_EQ(layer.gates(std::array{tokens[n]}).front(), gates[n]);
    sum += gates[n];
  }
  EXPECT_NEAR(sum / 4000, 0.5, 0.02);
  // The last 16 ordinary tokens ask.
  for (std::size_t n = 4000 - 16; n < 4000; ++n) EXPECT_TRUE(gates[n] > 0.75f || tokens[n].value() % 64 == 63);
  EXPECT_NE(PlantedLayer(problem, {}, {.needles = 16, .seed = 2}).gates(tokens), gates);
}

}  // namespace
}  // namespace ringmark::runtime
