// Every scorer with every choice and the fusions that it knows, with ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "kvstore/snapshot.h"
#include "runtime/kept_layer.h"
#include "runtime/memory_plan.h"
#include "runtime/row_needs.h"
#include "tests/runtime/prefill_checks.h"
#include "tests/support/pick.h"
#include "tests/support/refusal.h"

namespace ringmark::test {
namespace {

constexpr Bounds kBounds = {1e-5, 1e-5};
constexpr std::int64_t kSpan = 96;  // chunks enough for the longest test layer

struct Way {
  Scorer scorer;
  Fusion fusion;
  bool with_window;  // false: only W = 0, the current chunk
};

constexpr Way kWays[] = {
    {Scorer::kHils, Fusion::kHierarchical, true},
    {Scorer::kMean, Fusion::kHierarchical, true},
    {Scorer::kOracle, Fusion::kHierarchical, true},
    {Scorer::kLandmark, Fusion::kHierarchical, false},
    {Scorer::kLandmark, Fusion::kHierarchical, true},
    {Scorer::kMean, Fusion::kUnion, false},  // moba
    {Scorer::kHils, Fusion::kUnion, true},
    {Scorer::kLandmark, Fusion::kUnion, true},
    {Scorer::kQuest, Fusion::kUnion, true},
    {Scorer::kOracle, Fusion::kUnion, true},
};
constexpr Choice kChoices[] = {Choice::kGroup, Choice::kHead, Choice::kAll};

AttentionProblem random_problem(std::mt19937_64& random, const Way& way) {
  AttentionProblem problem;
  problem.chunk_size = pick<std::int64_t>(random, {8, 16, 16, 24});
  problem.tokens = pick<std::int64_t>(random, {1, 7, 64, 65, 131, 200, 257});
  problem.kv_heads = pick<std::int64_t>(random, {1, 2});
  problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 4});
  problem.head_dim = pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256});
  problem.dtype = pick(random, {DType::kBfloat16, DType::kFloat16, DType::kFloat32});
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = way.scorer == Scorer::kLandmark || random() % 2 == 0;
  if (random() % 3 == 0) {
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(problem.tokens));
    problem.cu_seqlens = {0, cut, cut, problem.tokens};
  }
  problem.validate();
  return problem;
}

AttentionPolicy random_policy(std::mt19937_64& random, const AttentionProblem& problem, const Way& way, Choice choice) {
  AttentionPolicy policy;
  policy.window = way.with_window ? pick<std::int64_t>(random, {0, 1, problem.chunk_size, 50}) : 0;
  policy.topk = pick<std::int64_t>(random, {1, 2, 4, kSpan});
  policy.sinks = pick<std::int64_t>(random, {0, 0, 3, problem.chunk_size + 1});
  policy.scorer = way.scorer;
  policy.choice = choice;
  policy.fusion = way.fusion;
  policy.validate(problem);
  return policy;
}

TEST(Policies, of_random_layers_give_one_result_on_any_ranks_near_the_reference) {
  std::mt19937_64 random(300);
  std::uint64_t seed = 300;
  for (const Way& way : kWays) {
    for (const Choice choice : kChoices) {
      for (int round = 0; round < 5; ++round, ++seed) {
        const AttentionProblem problem = random_problem(random, way);
        const TestLayer layer =
            random_layer(problem, random_policy(random, problem, way, choice), seed, random() % 4 == 0);
        const std::int64_t budget = round == 0 ? needed_budget(layer) : std::int64_t{64} << 20;
        const GatheredResult result = same_on_any_ranks(layer, budget);
        expect_near_reference(result, layer, run_reference(layer), kBounds,
                              "seed " + std::to_string(seed) + " " + describe(layer));
      }
    }
  }
}

// Nothing is left out and every mass is exact: dense causal attention, whoever chooses and however it is mixed.
TEST(Policies, the_oracle_with_all_chunks_is_dense_attention) {
  const AttentionProblem problem = small_problem(true);
  const TestLayer layer = random_layer(problem, {.window = 12, .topk = kSpan, .scorer = Scorer::kOracle}, 41);
  TestLayer dense = layer;
  dense.policy = {.window = problem.tokens, .scorer = Scorer::kNone};
  const kernels::reference::Result want = run_reference(dense);
  for (const Fusion fusion : {Fusion::kHierarchical, Fusion::kUnion}) {
    for (const Choice choice : kChoices) {
      TestLayer all = layer;
      all.policy.fusion = fusion;
      all.policy.choice = choice;
      const GatheredResult got = same_on_any_ranks(all, std::int64_t{64} << 20);
      EXPECT_LE(max_difference(got.out, want.out), 1e-5) << describe(all);
      EXPECT_LE(max_difference(got.lse, want.lse), 1e-5) << describe(all);
      const kernels::reference::Result exact = run_reference(all);
      for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(exact.out[i], want.out[i], 1e-9);
    }
  }
}

// The grouped softmax of Landmark Attention as its code has it, for one query head. Group 0: the landmarks of earlier
// chunks and the keys of the own chunk; then inside each chunk.
std::vector<double> grouped_softmax(const kernels::reference::Layer& layer, std::int64_t i, std::int64_t head) {
  const AttentionProblem& p = layer.problem;
  const std::int64_t kv_head = head / p.group(), own = i / p.chunk_size;
  const auto logit = [&](std::int64_t j) {
    double sum = 0.0;
    for (std::int64_t x = 0; x < p.head_dim; ++x) {
      sum += layer.q[static_cast<std::size_t>((i * p.heads + head) * p.head_dim + x)] *
             layer.k[static_cast<std::size_t>((j * p.kv_heads + kv_head) * p.head_dim + x)];
    }
    return p.scale * sum;
  };
  std::vector<double> out(static_cast<std::size_t>(p.head_dim), 0.0);
  const auto add = [&](std::int64_t j, double weight) {
    for (std::size_t x = 0; x < out.size(); ++x) {
      out[x] += weight * layer.v[static_cast<std::size_t>((j * p.kv_heads + kv_head) * p.head_dim) + x];
    }
  };
  const auto is_landmark = [&](std::int64_t j) { return j % p.chunk_size == p.chunk_size - 1; };
  double group_0 = 0.0;
  for (std::int64_t b = 0; b < own; ++b) group_0 += std::exp(logit((b + 1) * p.chunk_size - 1));
  for (std::int64_t j = own * p.chunk_size; j <= i; ++j) group_0 += is_landmark(j) ? 0.0 : std::exp(logit(j));
  for (std::int64_t j = own * p.chunk_size; j <= i; ++j) {
    if (!is_landmark(j)) add(j, std::exp(logit(j)) / group_0);
  }
  for (std::int64_t b = 0; b < own; ++b) {
    double group_b = 0.0;
    for (std::int64_t j = b * p.chunk_size; j < (b + 1) * p.chunk_size - 1; ++j) group_b += std::exp(logit(j));
    const double of_chunk = std::exp(logit((b + 1) * p.chunk_size - 1)) / group_0;
    for (std::int64_t j = b * p.chunk_size; j < (b + 1) * p.chunk_size - 1; ++j) {
      add(j, of_chunk * std::exp(logit(j)) / group_b);
    }
  }
  return out;
}

TEST(Policies, landmarks_with_all_chunks_are_the_grouped_softmax) {
  const AttentionProblem problem = small_problem(true);
  for (const Choice choice : kChoices) {
    const TestLayer layer =
        random_layer(problem, {.window = 0, .topk = kSpan, .scorer = Scorer::kLandmark, .choice = choice}, 42);
    const kernels::reference::Layer widened = layer.widened();
    std::vector<double> want;
    for (std::int64_t row = 0; row < problem.tokens * problem.heads; ++row) {
      const std::vector<double> out = grouped_softmax(widened, row / problem.heads, row % problem.heads);
      want.insert(want.end(), out.begin(), out.end());
    }
    EXPECT_LE(max_difference(same_on_any_ranks(layer, std::int64_t{64} << 20).out, want), 1e-5);
    const std::vector<double> reference = run_reference(layer).out;
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(reference[i], want[i], 1e-12);
  }
}

// Heads for themselves choose what every one of them would choose as the only head of its layer.
TEST(Policies, a_head_that_chooses_alone_does_not_see_the_others) {
  const AttentionProblem problem = small_problem(false);
  for (const Scorer scorer : {Scorer::kHils, Scorer::kMean, Scorer::kQuest}) {
    const Fusion fusion = scorer == Scorer::kQuest ? Fusion::kUnion : Fusion::kHierarchical;
    const TestLayer layer = random_layer(
        problem, {.window = 8, .topk = 3, .scorer = scorer, .choice = Choice::kHead, .fusion = fusion}, 43);
    const GatheredResult all = same_on_any_ranks(layer, std::int64_t{64} << 20);
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      TestLayer one = layer;
      one.problem.heads = one.problem.kv_heads = 1;
      one.policy.choice = Choice::kGroup;
      const auto take = [&](const std::vector<std::byte>& rows, std::int64_t heads, std::int64_t at) {
        const std::int64_t bytes = problem.head_dim * size_of(problem.dtype);
        std::vector<std::byte> taken;
        for (std::int64_t row = 0; row < std::ssize(rows) / (heads * bytes); ++row) {
          const auto from = rows.begin() + (row * heads + at) * bytes;
          taken.insert(taken.end(), from, from + bytes);
        }
        return taken;
      };
      one.q = take(layer.q, problem.heads, head);
      one.retrieval_q = take(layer.retrieval_q, problem.heads, head);
      one.k = take(layer.k, problem.kv_heads, head / problem.group());
      one.v = take(layer.v, problem.kv_heads, head / problem.group());
      const GatheredResult alone = same_on_any_ranks(one, std::int64_t{64} << 20);
      for (std::int64_t row = 0; row < problem.tokens; ++row) {
        const auto own = alone.lse[static_cast<std::size_t>(row)];
        ASSERT_EQ(all.lse[static_cast<std::size_t>(row * problem.heads + head)], own) << "row " << row;
        ASSERT_TRUE(std::equal(alone.chunks.begin() + row * 3, alone.chunks.begin() + (row + 1) * 3,
                               all.chunks.begin() + (row * problem.heads + head) * 3));
      }
    }
  }
}

// By hand: 4 query heads, 2 kv heads. Heads choose alone: 1 reads kv head 0, 2 and 3 read kv head 1. All together:
// both.
TEST(ChosenNeeds, are_the_kv_heads_that_the_chooser_s_heads_read) {
  const AttentionProblem problem = small_problem(false);
  const auto needs_of = [&](const kernels::Selection& selection) {
    std::vector<runtime::BlockId> needs;
    EXPECT_TRUE(runtime::chosen_needs(problem, selection, 0)(0, needs));
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    return needs;
  };
  using Blocks = std::vector<runtime::BlockId>;
  kernels::Selection apart(1, 4, 2), groups(1, 2, 2), together(1, 1, 2);
  apart.chunks = {-1, -1, 3, 5, 3, -1, 3, 7};
  EXPECT_EQ(needs_of(apart), (Blocks{{ChunkId(3), 0}, {ChunkId(3), 1}, {ChunkId(5), 0}, {ChunkId(7), 1}}));
  groups.chunks = {3, 5, 3, -1};
  EXPECT_EQ(needs_of(groups), (Blocks{{ChunkId(3), 0}, {ChunkId(3), 1}, {ChunkId(5), 0}}));
  together.chunks = {3, -1};
  EXPECT_EQ(needs_of(together), (Blocks{{ChunkId(3), 0}, {ChunkId(3), 1}}));
}

TEST(Policies, memory_counts_a_list_a_chooser) {
  const AttentionProblem problem = small_problem(false);
  const auto selection_bytes = [&](Choice choice) {
    const runtime::MemoryPlan plan = runtime::plan_memory(problem, {.topk = 5, .choice = choice}, {1, 150, 19}, false,
                                                          runtime::Merge::kLandmarks, {});
    return item_bytes(plan, "selection");
  };
  EXPECT_EQ(selection_bytes(Choice::kGroup), 150 * 2 * 5 * 4);
  EXPECT_EQ(selection_bytes(Choice::kHead), 150 * 4 * 5 * 4);
  EXPECT_EQ(selection_bytes(Choice::kAll), 150 * 5 * 4);
}

TEST(Policies, that_a_snapshot_or_decode_does_not_know_are_refused_by_name) {
  const AttentionProblem problem = small_problem(false);
  const AttentionPolicy head{.choice = Choice::kHead};
  const AttentionPolicy unites{.scorer = Scorer::kMean, .fusion = Fusion::kUnion};
  EXPECT_EQ(refusal_of([&] { kvstore::snapshot_bytes(problem, head, kvstore::BlockFormat::kAsInput); }),
            "choice = head does not go with a snapshot; limit: group");
  EXPECT_EQ(refusal_of([&] { kvstore::snapshot_bytes(problem, unites, kvstore::BlockFormat::kAsInput); }),
            "fusion = union does not go with a snapshot; limit: hierarchical");
  comm::run_thread_ranks(1, [&](comm::Communicator& communicator) {
    comm::LoopbackTransport transport(communicator);
    runtime::KeptShape shape{0, problem, unites};
    EXPECT_EQ(refusal_of([&] { runtime::KeptLayer(communicator, transport, shape, 1); }),
              "fusion = union does not go with decode; limit: hierarchical");
  });
}

}  // namespace
}  // namespace ringmark::test
