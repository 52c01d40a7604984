// Layers whose logits are more than scaled products, or whose windows begin inside a chunk, with ranks as threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kvstore/snapshot.h"
#include "runtime/kept_layer.h"
#include "runtime/row_needs.h"
#include "tests/runtime/prefill_checks.h"
#include "tests/support/pick.h"

namespace ringmark::test {
namespace {

using comm::TransportChoice;

AttentionProblem random_problem(std::mt19937_64& random, std::uint64_t seed) {
  AttentionProblem problem;
  problem.chunk_size = pick<std::int64_t>(random, {1, 16, 24, 64});
  problem.tokens = problem.chunk_size == 1 ? 40 : pick<std::int64_t>(random, {1, 7, 100, 129, 200});
  problem.kv_heads = pick<std::int64_t>(random, {1, 2, 3});
  problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 4});
  problem.head_dim = std::array<std::int64_t, 6>{32, 64, 80, 96, 128, 256}[seed % 6];
  problem.dtype = std::array{DType::kBfloat16, DType::kFloat16, DType::kFloat32}[seed % 3];
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = problem.chunk_size > 1 && random() % 2 == 0;
  if (random() % 2 == 0) problem.cu_seqlens = {0, problem.tokens / 3, problem.tokens / 3, problem.tokens};
  problem.logit_cap = pick(random, {0.0f, 0.7f, 30.0f});
  if (random() % 2 == 0) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      problem.sink_logits.push_back(static_cast<float>(head % 5) - 2.0f);
    }
  }
  return problem;
}

// On 1 to 5 ranks: the reference's rows, and the bits of one rank.
void check_layer(const TestLayer& layer) {
  layer.problem.validate();
  layer.policy.validate(layer.problem);
  const auto reference = run_reference(layer);
  GatheredResult alone;
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const Route& route : routes(TransportChoice::kAuto)) {
      if (!layer.policy.selects() && route.merge == runtime::Merge::kScores) continue;  // nothing is merged
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        check_against_reference(communicator, layer, reference, route, needed_budget(layer));
        GatheredResult got = run_prefill(communicator, route.transport, layer, route.balance, {.merge = route.merge});
        if (communicator.rank() != 0) return;
        if (alone.out.empty()) alone = got;
        const std::string what = describe(layer) + " ranks " + std::to_string(ranks) + " " + describe(route);
        EXPECT_EQ(std::memcmp(got.out.data(), alone.out.data(), got.out.size() * sizeof(float)), 0) << what;
        EXPECT_EQ(std::memcmp(got.lse.data(), alone.lse.data(), got.lse.size() * sizeof(float)), 0) << what;
      });
    }
  }
}

TEST(LogitsOnThreads, exact_windows_match_the_reference) {
  std::mt19937_64 random(1);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    AttentionProblem problem = random_problem(random, seed);
    problem.alibi = seed % 2 == 0;
    AttentionPolicy policy{.scorer = Scorer::kNone, .edge = WindowEdge::kToken};
    if (seed % 3 == 2) policy.edge = WindowEdge::kSegment, policy.segment = pick<std::int64_t>(random, {1, 10, 64});
    policy.window = pick<std::int64_t>(random, {1, problem.chunk_size, problem.chunk_size + 1, 50, 1000});
    policy.sinks = pick<std::int64_t>(random, {0, 1, 4, 70});
    check_layer(random_layer(problem, policy, seed));
  }
}

TEST(LogitsOnThreads, sinks_have_queries_of_their_own) {
  std::mt19937_64 random(2);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const AttentionProblem problem = random_problem(random, seed);
    const AttentionPolicy policy{.window = pick<std::int64_t>(random, {1, 9, 40}),
                                 .sinks = pick<std::int64_t>(random, {1, 4, 30}),
                                 .scorer = Scorer::kNone,
                                 .edge = seed % 3 == 0 ? WindowEdge::kChunk : WindowEdge::kToken};
    TestLayer layer = random_layer(problem, policy, seed);
    layer.sink_q = random_layer(problem, policy, seed + 100).q;
    check_layer(layer);
  }
}

// What is chosen does not know the cap, but for the oracle, whose score is the mass of capped logits.
TEST(LogitsOnThreads, chosen_chunks_match_the_reference) {
  std::mt19937_64 random(3);
  for (std::uint64_t seed = 0; seed < 9; ++seed) {
    const AttentionProblem problem = random_problem(random, seed);
    const AttentionPolicy policy{.window = pick<std::int64_t>(random, {0, problem.chunk_size + 3}),
                                 .topk = pick<std::int64_t>(random, {1, 3}),
                                 .sinks = pick<std::int64_t>(random, {0, 2}),
                                 .scorer = std::array{Scorer::kOracle, Scorer::kHils, Scorer::kMean}[seed % 3]};
    check_layer(random_layer(problem, policy, seed));
  }
}

// With every chunk chosen by its mass nothing is lost, capped or not, in chunks of one key too.
TEST(LogitsOnThreads, the_oracle_with_all_chunks_is_exact_attention) {
  for (const std::int64_t chunk_size : {1, 16}) {
    AttentionProblem problem;
    problem.tokens = 90;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 80;
    problem.chunk_size = chunk_size;
    problem.dtype = DType::kFloat32;
    problem.logit_cap = 0.6f;
    problem.sink_logits = {0.0f, 1.0f, 2.0f, -3.0f};
    TestLayer layer = random_layer(problem, {.window = 0, .topk = 100, .scorer = Scorer::kOracle}, 4);
    const auto chosen = run_reference(layer);
    const auto alone = comm::make_single_rank();
    const GatheredResult got = run_prefill(*alone, TransportChoice::kAuto, layer, partition::Balance::kRotate, {});
    layer.policy = {.window = problem.tokens, .topk = 0, .scorer = Scorer::kNone};
    const auto exact = run_reference(layer);
    EXPECT_LT(max_difference({chosen.out.begin(), chosen.out.end()}, exact.out), 1e-6) << chunk_size;
    EXPECT_LT(max_difference(got.out, exact.out), 2e-5) << chunk_size;
    EXPECT_LT(max_difference(got.lse, exact.lse), 2e-5) << chunk_size;
  }
}

// A chunk in which sinks end and the window begins is fetched once.
TEST(WindowNeeds, name_every_block_once) {
  AttentionProblem problem;
  problem.tokens = 64;
  problem.chunk_size = 8;
  problem.kv_heads = problem.heads = 2;
  const AttentionPolicy policy{.window = 20, .topk = 0, .sinks = 12, .edge = WindowEdge::kToken};
  const partition::SequenceGrid grid(problem, policy);
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < problem.tokens; ++token) tokens.emplace_back(token);
  const runtime::RowNeeds needs = runtime::window_needs(problem, grid, tokens);
  std::vector<runtime::BlockId> last;
  for (std::int64_t row = 0; row < problem.tokens; ++row) {
    std::vector<runtime::BlockId> blocks;
    if (needs(row, blocks)) last = blocks;
    std::set<std::int64_t> chunks;
    for (std::int64_t j = 0; j <= row; ++j) {
      if (j < policy.sinks || row - j < policy.window) chunks.insert(j / problem.chunk_size);
    }
    EXPECT_EQ(last.size(), 2 * chunks.size()) << "row " << row;
    for (const runtime::BlockId& block : last) EXPECT_TRUE(chunks.contains(block.chunk.value())) << "row " << row;
    EXPECT_LE(std::ssize(chunks), 1 + runtime::most_chunks_of_a_row(problem, policy, grid));
  }
}

TEST(KeptLayers, refuse_what_a_snapshot_cannot_say) {
  AttentionProblem problem;
  problem.tokens = 10;
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([&] { kvstore::check_can_be_kept(problem, {}); }), "accepted");
  EXPECT_EQ(refusal([&] { kvstore::check_can_be_kept(problem, {.topk = 0, .edge = WindowEdge::kToken}); }),
            "edge = token cannot be kept: a snapshot has no place for it");
  problem.logit_cap = 20.0f;
  const std::string want = "logit_cap = 20.000000 cannot be kept: a snapshot has no place for it";
  const auto alone = comm::make_single_rank();
  kvstore::SnapshotContents contents;
  contents.problem = problem;
  EXPECT_EQ(refusal([&] { kvstore::write_snapshot(*alone, "nowhere", contents); }), want);
  const auto chosen = comm::choose_transport(*alone, TransportChoice::kAuto);
  runtime::KeptShape shape;
  shape.problem = problem;
  EXPECT_EQ(refusal([&] { runtime::KeptLayer(*alone, *chosen.transport, shape, 1); }), want);
}

}  // namespace
}  // namespace ringmark::test
