// LoGo with ranks as threads.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "comm/thread_ranks.h"
#include "kernels/reference/logo.h"
#include "runtime/logo/prefill.h"
#include "tests/kernels/attention_case.h"
#include "tests/runtime/dense_checks.h"
#include "tests/support/gather_rows.h"

namespace ringmark::test {
namespace {

using kernels::pick;
using partition::Balance;
using runtime::dense::Strategy;

struct LogoCase {
  TestLayer layer;
  std::vector<float> gates;  // by token
  double threshold = 0.5;
  runtime::logo::BranchWeights weights = {};
};

struct Gathered {
  std::vector<float> out, lse;  // in token order
  std::int64_t selected = 0;
  runtime::dense::ReceivedBytes received = {};
};

Gathered run_logo(comm::Communicator& communicator, const LogoCase& c, Strategy strategy = Strategy::kAllGather,
                  Balance balance = Balance::kContiguous, int threads = 1) {
  const AttentionProblem& problem = c.layer.problem;
  const partition::SequenceGrid grid(problem, c.layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), balance);
  const RankId rank(communicator.rank());
  runtime::LayerShard shard = c.layer.shard(layout, rank);
  std::vector<float> gates;
  for (const TokenId token : layout.tokens_of(rank)) gates.push_back(c.gates[static_cast<std::size_t>(token.value())]);
  const auto chosen = comm::choose_transport(communicator, comm::TransportChoice::kAuto);
  runtime::SilentProgress progress;
  const runtime::logo::Options options{{.strategy = strategy, .threads = threads}, c.threshold, c.weights};
  const auto result = runtime::logo::prefill(communicator, *chosen.transport, problem, c.layer.policy, layout, shard,
                                             gates, options, progress);
  return {gather(communicator, layout, problem.tokens, problem.heads * problem.head_dim, result.out),
          gather(communicator, layout, problem.tokens, problem.heads, result.lse), result.selected, result.received};
}

Gathered run_alone(const LogoCase& c) {
  const auto alone = comm::make_single_rank();
  return run_logo(*alone, c);
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

kernels::reference::Result reference_of(const LogoCase& c) {
  const auto& w = c.weights;
  return kernels::reference::attend_logo(
      c.layer.widened(), widened(c.gates), c.threshold,
      {widened(w.local_norm), widened(w.global_norm), widened(w.global_scale), widened(w.global_offset)},
      c.layer.tokens(), 1);
}

TestLayer logo_layer(const AttentionProblem& problem, std::int64_t window, std::uint64_t seed) {
  problem.validate();
  const AttentionPolicy policy = exact_window(window);
  policy.validate(problem);
  return random_layer(problem, policy, seed);
}

LogoCase random_case(std::mt19937_64& random) {
  AttentionProblem problem = kernels::random_problem(random);
  problem.head_dim = pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256});
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.logit_cap = pick<float>(random, {0.0f, 0.0f, 5.0f});
  problem.alibi = random() % 4 == 0;
  if (random() % 3 == 0) problem.sink_logits = kernels::normal_floats(random, problem.heads);
  LogoCase c{logo_layer(problem, pick<std::int64_t>(random, {1, 16, 33, 128, 1000}), random()), {}};
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    c.gates.push_back(static_cast<float>(random() % 1000 + 1) / 1002.0f);
  }
  c.threshold = pick<double>(random, {-2.0, 0.2, 0.5, 0.9, 1.0});
  if (random() % 2 == 0) {
    c.weights.local_norm = kernels::normal_floats(random, problem.head_dim);
    c.weights.global_norm = kernels::normal_floats(random, problem.head_dim);
  }
  if (random() % 2 == 0) c.weights.global_scale = kernels::normal_floats(random, problem.heads * problem.head_dim);
  if (random() % 3 == 0) c.weights.global_offset = kernels::normal_floats(random, problem.heads * problem.head_dim);
  return c;
}

TEST(LogoOnThreads, random_layers_match_fp64_on_any_ranks) {
  std::mt19937_64 random(31);
  for (int trial = 0; trial < 14; ++trial) {
    const LogoCase c = random_case(random);
    const auto want = reference_of(c);
    const Gathered alone = run_alone(c);
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const Strategy strategy : {Strategy::kRing, Strategy::kPassQ, Strategy::kAllGather}) {
        const auto balance = pick<Balance>(random, {Balance::kContiguous, Balance::kZigzag, Balance::kRotate});
        comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
          const Gathered run = run_logo(communicator, c, strategy, balance, 1 + ranks % 2);
          const std::string what = describe(c.layer) + ": " + std::string(name_of(strategy)) + " on " +
                                   std::to_string(ranks) + " ranks, threshold " + std::to_string(c.threshold);
          EXPECT_LE(max_difference(run.out, want.out), 1e-4) << what;
          EXPECT_LE(max_difference(run.lse, want.lse), 2e-5) << what;
          if (strategy != Strategy::kAllGather) return;
          EXPECT_EQ(run.out, alone.out) << what;
          EXPECT_EQ(run.lse, alone.lse) << what;
        });
      }
    }
  }
}

// Three tokens of one head of two components, zero queries, a window of one: the local branch is the own value, the
// global one the mean of the values so far.
LogoCase tiny_case(std::vector<float> gates, double threshold, std::int64_t window = 1) {
  AttentionProblem problem;
  problem.tokens = 3;
  problem.head_dim = 2;
  problem.chunk_size = 1;
  problem.dtype = DType::kFloat32;
  LogoCase c{logo_layer(problem, window, 2), std::move(gates), threshold};
  c.layer.q = stored(std::vector<float>(6, 0.0f));
  c.layer.v = stored({3, 4, 4, 3, 0, 2});
  return c;
}

void expect_on_all_ranks(const LogoCase& c, const std::vector<float>& out, const std::vector<float>& lse) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const Strategy strategy : {Strategy::kRing, Strategy::kPassQ, Strategy::kAllGather}) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const Gathered run = run_logo(communicator, c, strategy);
        for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(run.out[i], out[i], 1e-5f) << ranks << " at " << i;
        for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(run.lse[i], lse[i], 1e-5f) << ranks << " at " << i;
      });
    }
  }
}

// Root mean squares: (3, 4) 5 / sqrt 2; (0, 2) sqrt 2; means (3.5, 3.5) 3.5 and (7/3, 3) sqrt(65/9).
TEST(LogoOnThreads, two_of_three_rows_by_hand) {
  const float r = std::sqrt(2.0f) / 5, s = std::sqrt(65.0f / 9);
  expect_on_all_ranks(tiny_case({0.1f, 0.25f, 0.5f}, 0.2),
                      {3 * r, 4 * r, 0.75f * 4 * r + 0.25f, 0.75f * 3 * r + 0.25f, 0.5f * 7 / 3 / s,
                       0.5f * std::sqrt(2.0f) + 0.5f * 3 / s},
                      {0, std::log(2.0f), std::log(3.0f)});
}

TEST(LogoOnThreads, no_gate_above_the_threshold_by_hand) {
  const float r = std::sqrt(2.0f) / 5;
  const LogoCase c = tiny_case({0.1f, 0.25f, 0.5f}, 0.5);  // not above
  expect_on_all_ranks(c, {3 * r, 4 * r, 4 * r, 3 * r, 0, std::sqrt(2.0f)}, {0, 0, 0});
  comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
    const Gathered run = run_logo(communicator, c, Strategy::kPassQ);
    EXPECT_EQ(run.selected, 0);
    EXPECT_EQ(run.received.keys + run.received.queries + run.received.partials, 0);
  });
}

// Both branches are the mean of all: the gates do not matter.
TEST(LogoOnThreads, a_window_of_everything_by_hand) {
  const float r = std::sqrt(2.0f) / 5, s = std::sqrt(65.0f / 9);
  expect_on_all_ranks(tiny_case({0.9f, 0.25f, 0.5f}, -2.0, 3), {3 * r, 4 * r, 1, 1, 7.0f / 3 / s, 3 / s},
                      {0, std::log(2.0f), std::log(3.0f)});
}

// What pass-q moves is in proportion to the rows that are selected.
TEST(LogoOnThreads, only_selected_rows_travel) {
  AttentionProblem problem;
  problem.tokens = 256;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  LogoCase c{logo_layer(problem, 16, 4), std::vector<float>(256, 0.1f)};
  for (std::size_t token = 0; token < 256; token += 4) c.gates[token] = 0.9f;
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const Gathered run = run_logo(communicator, c, Strategy::kPassQ);
    EXPECT_EQ(run.selected, 64);
    EXPECT_EQ(run.received.keys, 0);
    EXPECT_EQ(run.received.queries, communicator.rank() == 0 ? 32 * 32 * 2 : 0);
  });
}

}  // namespace
}  // namespace ringmark::test
