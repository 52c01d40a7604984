// Dilated attention with ranks as threads.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/reference/dilated.h"
#include "runtime/dilated/prefill.h"
#include "tests/kernels/attention_case.h"
#include "tests/runtime/dense_checks.h"
#include "tests/support/gather_rows.h"

namespace ringmark::test {
namespace {

using kernels::Dilation;
using partition::Balance;

struct Gathered {
  std::vector<float> out, lse;  // in token order
  std::int64_t bytes_fetched = 0;
};

struct Route {
  Balance balance = Balance::kContiguous;
  std::int64_t fetch_budget = std::int64_t{64} << 20;
  int threads = 1;
};

Gathered run_dilated(comm::Communicator& communicator, const TestLayer& layer, const std::vector<Dilation>& dilations,
                     const Route& route) {
  const AttentionProblem& problem = layer.problem;
  const partition::SequenceGrid grid(problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), route.balance);
  runtime::LayerShard shard = layer.shard(layout, RankId(communicator.rank()));
  const auto chosen = comm::choose_transport(communicator, comm::TransportChoice::kAuto);
  runtime::SilentProgress progress;
  const auto result = runtime::dilated::prefill(
      communicator, *chosen.transport, problem, grid, layout, shard,
      {.dilations = dilations, .fetch_budget = route.fetch_budget, .threads = route.threads}, progress);
  return {gather(communicator, layout, problem.tokens, problem.heads * problem.head_dim, result.out),
          gather(communicator, layout, problem.tokens, problem.heads, result.lse), result.bytes_fetched};
}

Gathered run_alone(const TestLayer& layer, const std::vector<Dilation>& dilations) {
  const auto alone = comm::make_single_rank();
  return run_dilated(*alone, layer, dilations, {});
}

// What two stretches of any pair need at most.
std::int64_t least_budget(const AttentionProblem& problem, const std::vector<Dilation>& dilations) {
  std::int64_t chunks = 0;
  for (const Dilation& dilation : dilations) {
    const std::int64_t length = std::min(dilation.segment, kernels::kStretchKeys * dilation.rate);
    chunks = std::max(chunks, length / problem.chunk_size + 2);
  }
  return 2 * chunks * problem.kv_heads * kernels::BlockShape::of(problem).bytes();
}

std::vector<Dilation> random_dilations(std::mt19937_64& random) {
  std::vector<Dilation> dilations;
  for (std::uint64_t pairs = 1 + random() % 3; pairs > 0; --pairs) {
    const auto segment = kernels::pick<std::int64_t>(random, {7, 64, 100, 256, 1 << 20});
    dilations.push_back({segment, std::min(segment, kernels::pick<std::int64_t>(random, {1, 2, 3, 8}))});
  }
  return dilations;
}

TEST(DilatedOnThreads, random_layers_match_fp64_and_no_rank_count_changes_a_bit) {
  std::mt19937_64 random(11);
  for (std::uint64_t seed = 0; seed < 14; ++seed) {
    AttentionProblem problem = kernels::random_problem(random);
    problem.head_dim = kernels::pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256});
    problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
    problem.logit_cap = seed % 3 == 0 ? 5.0f : 0.0f;
    problem.alibi = seed % 4 == 1;
    if (seed % 3 == 1) problem.sink_logits = kernels::normal_floats(random, problem.heads);
    const TestLayer layer = dense_layer(problem, seed);
    const std::vector<Dilation> dilations = random_dilations(random);
    const Gathered alone = run_alone(layer, dilations);
    const auto want = kernels::reference::attend_dilated(layer.widened(), dilations, layer.tokens());
    EXPECT_LE(max_difference(alone.out, want.out), 1e-5) << describe(layer);
    EXPECT_LE(max_difference(alone.lse, want.lse), 1e-5) << describe(layer);
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
        comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
          const std::int64_t budget = ranks % 2 == 0 ? least_budget(problem, dilations) : std::int64_t{64} << 20;
          const Gathered run = run_dilated(communicator, layer, dilations, {balance, budget, 1 + ranks % 2});
          EXPECT_EQ(run.out, alone.out) << describe(layer) << " on " << ranks << " ranks, " << name_of(balance);
          EXPECT_EQ(run.lse, alone.lse) << describe(layer) << " on " << ranks << " ranks, " << name_of(balance);
        });
      }
    }
  }
}

// Two documents of 5 and 3 tokens, one component, zero queries: the mean of the values seen, by hand, on any ranks.
TEST(DilatedOnThreads, worked_by_hand) {
  AttentionProblem problem;
  problem.tokens = 8;
  problem.heads = 2;
  problem.head_dim = 1;
  problem.chunk_size = 1;
  problem.dtype = DType::kFloat32;
  problem.cu_seqlens = {0, 5, 8};
  TestLayer layer = dense_layer(problem, 2);
  const auto store = [](const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  layer.q = store(std::vector<float>(16, 0.0f));
  layer.v = store({1, 2, 3, 4, 5, 6, 7, 8});
  // Segments of 4 at rate 2: head 0 has places 0 and 2, head 1 has 1 and 3.
  const std::vector<float> sparse = {1, 0, 0, 2, 2, 0, 0, 3, 5, 0, 6, 0, 0, 7, 7, 0};
  // Segments of 2 besides: every key there counts once more.
  const std::vector<float> both = {1, 1, 1.5, 5.0f / 3, 7.0f / 3, 3,         3.5,       13.0f / 4,
                                   5, 5, 6,   6,        6.5,      20.0f / 3, 22.0f / 3, 8};
  const std::vector<float> counts = {2, 1, 2, 3, 3, 1, 2, 4, 2, 1, 2, 1, 2, 3, 3, 1};
  for (int ranks = 1; ranks <= 5; ++ranks) {
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      const Gathered one = run_dilated(communicator, layer, {{4, 2}}, {});
      const Gathered two = run_dilated(communicator, layer, {{4, 2}, {2, 1}}, {});
      for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_NEAR(one.out[i], sparse[i], 1e-5f) << ranks << " ranks, at " << i;
        EXPECT_NEAR(two.out[i], both[i], 1e-5f) << ranks << " ranks, at " << i;
        EXPECT_NEAR(std::exp(two.lse[i]), counts[i], 1e-4f) << ranks << " ranks, at " << i;
      }
    });
  }
}

// Contiguous shards whose borders are borders of segments: nobody needs anything. Half a segment further, the second
// half of each segment needs the first.
TEST(DilatedOnThreads, only_blocks_of_the_segment_move) {
  AttentionProblem problem;
  problem.tokens = 512;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  const TestLayer layer = dense_layer(problem, 3);
  comm::run_thread_ranks(4, [&](comm::Communicator& communicator) {
    EXPECT_EQ(run_dilated(communicator, layer, {{128, 1}, {64, 4}}, {}).bytes_fetched, 0);
    const std::int64_t chunk_bytes = kernels::BlockShape::of(problem).bytes();
    const bool second_half = communicator.rank() % 2 == 1;
    EXPECT_EQ(run_dilated(communicator, layer, {{256, 4}}, {}).bytes_fetched, second_half ? 8 * chunk_bytes : 0);
  });
}

TEST(DilatedOnThreads, a_budget_below_two_stretches_is_refused_on_every_rank) {
  AttentionProblem problem;
  problem.tokens = 512;
  problem.chunk_size = 16;
  const TestLayer layer = dense_layer(problem, 4);
  comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
    try {
      run_dilated(communicator, layer, {{512, 4}}, {Balance::kContiguous, 1});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
    }
  });
}

}  // namespace
}  // namespace ringmark::test
