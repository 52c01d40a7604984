// Recall of whole layers with ranks as threads, against sums in fp64 over the keys that the definition names.
#include "runtime/recall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "comm/thread_ranks.h"
#include "tests/support/gather_rows.h"
#include "tests/support/pick.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {
namespace {

using runtime::Recall;
using runtime::RecallOptions;

struct Measured {
  Recall recall;
  kernels::Selection selection;  // of the whole sequence
};

Measured measure(const TestLayer& layer, int ranks, const RecallOptions& options,
                 partition::Balance balance = partition::Balance::kZigzag) {
  Measured measured;
  std::mutex lock;
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    const partition::Layout layout = partition::make_layout(grid, ranks, balance);
    runtime::LayerShard shard = layer.shard(layout, RankId(communicator.rank()));
    runtime::PrefillOptions run;
    std::optional<Recall> recall;
    run.keep = [&](const runtime::PrefillState& state) {
      recall = runtime::measure_recall(communicator, layer.problem, layout, state, shard.queries(), options);
    };
    const auto result = engine_under_test().prefill(communicator, comm::TransportChoice::kAuto, layer.problem,
                                                    layer.policy, layout, shard, run);
    kernels::Selection whole(layer.problem.tokens, result.selection.choosers, result.selection.topk);
    whole.chunks =
        gather(communicator, layout, layer.problem.tokens, whole.choosers * whole.topk, result.selection.chunks);
    const std::scoped_lock hold(lock);
    measured = {*recall, std::move(whole)};
  });
  return measured;
}

// By definition, of every sampled (row, head) that has a key, with its depth.
struct Pair {
  double share;
  std::size_t depth;
};
std::vector<Pair> exact_pairs(const TestLayer& layer, const kernels::Selection& selection,
                              const RecallOptions& options) {
  const AttentionProblem& p = layer.problem;
  const partition::SequenceGrid grid(p, layer.policy);
  const auto wide = layer.widened();
  std::vector<Pair> pairs;
  for (TokenId i(0); i < TokenId(p.tokens); ++i) {
    if (!runtime::is_sampled(options, i)) continue;
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t kv_head = head / p.group();
      const std::int64_t chooser = head * selection.choosers / p.heads;
      const auto chosen = selection.topk > 0 ? selection.chosen(i.value(), chooser) : std::span<const std::int32_t>();
      const double* query = wide.q.data() + (i.value() * p.heads + head) * p.head_dim;
      double all = 0.0, kept = 0.0;
      for (TokenId j = grid.document_of(i).tokens.begin; j <= i; ++j) {
        if (!grid.is_key(j)) continue;
        const double* key = wide.k.data() + (j.value() * p.kv_heads + kv_head) * p.head_dim;
        const double mass = std::exp(p.scale * std::inner_product(query, query + p.head_dim, key, 0.0));
        all += mass;
        const bool attended = grid.window_of(i).contains(j) || grid.sinks_of(i).contains(j) ||
                              std::ranges::count(chosen, grid.chunk_of(j).value()) > 0;
        if (attended) kept += mass;
      }
      if (all > 0.0) pairs.push_back({kept / all, static_cast<std::size_t>(i.value() * 10 / p.tokens)});
    }
  }
  return pairs;
}

void expect_share(const runtime::RecallShare& got, std::vector<double> exact, const std::string& what) {
  ASSERT_EQ(got.pairs, std::ssize(exact)) << what;
  if (exact.empty()) {
    EXPECT_EQ(got.mean, 1.0) << what;
    return;
  }
  std::sort(exact.begin(), exact.end());
  const double mean = std::accumulate(exact.begin(), exact.end(), 0.0) / static_cast<double>(exact.size());
  EXPECT_NEAR(got.mean, mean, 1e-5) << what;
  EXPECT_NEAR(got.p5, exact[(exact.size() * 5 + 99) / 100 - 1], 1e-5) << what;
}

void expect_exact(const TestLayer& layer, const Measured& measured, const RecallOptions& options) {
  const std::vector<Pair> pairs = exact_pairs(layer, measured.selection, options);
  std::vector<double> all;
  std::array<std::vector<double>, Recall::kDepths> by_depth;
  for (const Pair& pair : pairs) {
    all.push_back(pair.share);
    by_depth[pair.depth].push_back(pair.share);
  }
  expect_share(measured.recall.all, all, describe(layer));
  for (std::size_t depth = 0; depth < by_depth.size(); ++depth) {
    expect_share(measured.recall.depths[depth], by_depth[depth], describe(layer) + " depth " + std::to_string(depth));
  }
}

std::vector<double> numbers(const Recall& recall) {
  std::vector<double> all = {static_cast<double>(recall.rows), static_cast<double>(recall.all.pairs), recall.all.mean,
                             recall.all.p5};
  for (const auto& depth : recall.depths) {
    all.insert(all.end(), {static_cast<double>(depth.pairs), depth.mean, depth.p5});
  }
  return all;
}

TestLayer random_layer_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto kv_heads = pick<std::int64_t>(random, {1, 2});
  AttentionProblem problem =
      problem_of(pick<std::int64_t>(random, {1, 2, 63, 64, 65, 130, 257, 300}), pick<std::int64_t>(random, {1, 16, 64}),
                 kv_heads * pick<std::int64_t>(random, {1, 2, 4}), kv_heads,
                 pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256}),
                 pick(random, {DType::kBfloat16, DType::kFloat16, DType::kFloat32}));
  problem.scale *= pick(random, {1.0f, 4.0f});
  problem.landmark_slots = problem.chunk_size > 1 && random() % 2 == 0;
  if (random() % 3 == 0) {
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(problem.tokens));
    problem.cu_seqlens = {0, cut, cut, problem.tokens};
  }
  AttentionPolicy policy;
  policy.window = pick<std::int64_t>(random, {0, 1, 16, 100});
  policy.topk = pick<std::int64_t>(random, {0, 1, 4, 1000});
  policy.sinks = pick<std::int64_t>(random, {0, 0, 1, 20});
  policy.scorer = pick(random, {Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kQuest, Scorer::kNone});
  if (policy.scorer == Scorer::kMean && problem.landmark_slots) policy.scorer = Scorer::kLandmark;
  if (policy.scorer == Scorer::kNone) {
    policy.edge = pick(random, {WindowEdge::kChunk, WindowEdge::kToken, WindowEdge::kSegment});
    if (policy.edge == WindowEdge::kToken) policy.window = std::max<std::int64_t>(1, policy.window);
    policy.segment = policy.edge == WindowEdge::kSegment ? 24 : 0;
  }
  policy.choice = pick(random, {Choice::kGroup, Choice::kHead, Choice::kAll});
  policy.fusion = policy.scorer == Scorer::kQuest ? Fusion::kUnion : Fusion::kHierarchical;
  return random_layer(problem, policy, seed);
}

TEST(Recall, random_layers_match_fp64_and_are_the_same_bits_on_any_ranks) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const TestLayer layer = random_layer_of(seed);
    const RecallOptions options{seed % 2 == 0 ? 1.0 : 0.3, seed, 1};
    std::set<std::vector<double>> results;
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const Measured measured = measure(layer, ranks, options);
      expect_exact(layer, measured, options);
      results.insert(numbers(measured.recall));
    }
    EXPECT_EQ(results.size(), 1u) << "seed " << seed << " " << describe(layer);
  }
}

TEST(Recall, layouts_do_not_change_a_bit) {
  const TestLayer layer = random_layer(problem_of(500, 16, 4, 2, 64, DType::kBfloat16),
                                       {.window = 32, .topk = 4, .sinks = 3, .scorer = Scorer::kHils}, 3);
  std::set<std::vector<double>> results;
  for (const auto balance :
       {partition::Balance::kContiguous, partition::Balance::kZigzag, partition::Balance::kRotate}) {
    results.insert(numbers(measure(layer, 3, {0.5, 7, 2}, balance).recall));
  }
  EXPECT_EQ(results.size(), 1u);
}

TEST(Recall, nothing_is_lost_by_a_window_or_a_choice_of_everything) {
  const AttentionProblem problem = problem_of(300, 16, 4, 2, 64, DType::kBfloat16);
  for (const AttentionPolicy& policy : {AttentionPolicy{.window = 300, .topk = 0, .scorer = Scorer::kNone},
                                        {.window = 16, .topk = 1000, .scorer = Scorer::kMean},
                                        {.window = 0, .topk = 1000, .sinks = 5, .scorer = Scorer::kHils}}) {
    const Recall recall = measure(random_layer(problem, policy, 1), 2, {1.0, 1, 1}).recall;
    EXPECT_EQ(recall.rows, 300);
    EXPECT_EQ(recall.all.pairs, 300 * 4);
    EXPECT_EQ(recall.all.mean, 1.0);
    EXPECT_EQ(recall.all.p5, 1.0);
    EXPECT_FALSE(recall.collapses());
  }
}

TEST(Recall, a_sample_is_a_function_of_seed_and_token) {
  const TestLayer layer = random_layer(problem_of(2000, 16, 1, 1, 32, DType::kFloat32),
                                       {.window = 0, .topk = 0, .scorer = Scorer::kNone}, 2);
  const RecallOptions options{0.1, 4, 1};
  std::int64_t expected = 0;
  for (std::int64_t token = 0; token < 2000; ++token) expected += runtime::is_sampled(options, TokenId(token));
  EXPECT_NEAR(static_cast<double>(expected), 200.0, 4 * std::sqrt(180.0));
  EXPECT_EQ(measure(layer, 1, options).recall.rows, expected);
  EXPECT_EQ(measure(layer, 4, options).recall.rows, expected);
  bool differs = false;
  for (std::int64_t token = 0; token < 2000; ++token) {
    differs |= runtime::is_sampled(options, TokenId(token)) != runtime::is_sampled({0.1, 5, 1}, TokenId(token));
  }
  EXPECT_TRUE(differs);
}

TEST(Recall, nothing_sampled_is_no_collapse) {
  const TestLayer layer =
      random_layer(problem_of(3, 16, 1, 1, 32, DType::kFloat32), {.window = 0, .topk = 0, .scorer = Scorer::kNone}, 2);
  const Recall recall = measure(layer, 2, {1e-9, 1, 1}).recall;
  EXPECT_EQ(recall.rows, 0);
  EXPECT_EQ(recall.all.pairs, 0);
  EXPECT_FALSE(recall.collapses());
}

// Ten tokens of equal keys in chunks of one, and no choice: query i keeps its own key of i + 1.
TEST(Recall, by_hand_a_window_of_one_key) {
  TestLayer layer{
      problem_of(10, 1, 1, 1, 1, DType::kFloat32), {.window = 0, .topk = 0, .scorer = Scorer::kNone}, {}, {}, {}, {}};
  layer.q = layer.k = layer.v = stored(std::vector<float>(10, 1.0f), DType::kFloat32);
  const Recall recall = measure(layer, 3, {1.0, 1, 1}).recall;
  double sum = 0.0;
  for (std::size_t depth = 0; depth < 10; ++depth) {
    EXPECT_NEAR(recall.depths[depth].mean, 1.0 / static_cast<double>(depth + 1), 1e-6) << depth;
    sum += 1.0 / static_cast<double>(depth + 1);
  }
  EXPECT_NEAR(recall.all.mean, sum / 10.0, 1e-6);
  EXPECT_NEAR(recall.all.p5, 0.1, 1e-6);
  EXPECT_TRUE(recall.collapses());
}

// Masses 1, 8 and then 1 a token in chunks of one; K = 1 by the exact mass: everybody later takes the 8.
TEST(Recall, by_hand_the_heaviest_key_is_chosen) {
  TestLayer layer{
      problem_of(10, 1, 1, 1, 1, DType::kFloat32), {.window = 0, .topk = 1, .scorer = Scorer::kOracle}, {}, {}, {}, {}};
  std::vector<float> keys(10, 0.0f);
  keys[1] = std::log(8.0f);
  layer.q = layer.v = stored(std::vector<float>(10, 1.0f), DType::kFloat32);
  layer.k = stored(keys, DType::kFloat32);
  const Recall recall = measure(layer, 2, {1.0, 1, 1}).recall;
  EXPECT_EQ(recall.depths[1].mean, 1.0);                 // its own and the key before it
  EXPECT_NEAR(recall.depths[2].mean, 9.0 / 10.0, 1e-6);  // 8 + 1 of 1 + 8 + 1
  EXPECT_NEAR(recall.depths[9].mean, 9.0 / 17.0, 1e-6);  // 8 + 1 of 17
  EXPECT_FALSE(recall.collapses());
}

// Two heads of one kv head, keys of mass 4 and 1 for the first and 1 and 4 for the second: W = 0 keeps one of two.
TEST(Recall, by_hand_heads_count_alone) {
  TestLayer layer{
      problem_of(2, 1, 2, 1, 1, DType::kFloat32), {.window = 0, .topk = 0, .scorer = Scorer::kNone}, {}, {}, {}, {}};
  layer.problem.scale = 1.0f;
  layer.q = stored({1.0f, -1.0f, 1.0f, -1.0f}, DType::kFloat32);
  layer.k = stored({std::log(2.0f), -std::log(2.0f)}, DType::kFloat32);  // masses 2, 1/2 and 1/2, 2
  layer.v = stored({1.0f, 1.0f}, DType::kFloat32);
  const Recall recall = measure(layer, 2, {1.0, 1, 1}).recall;
  EXPECT_EQ(recall.depths[0].mean, 1.0);
  EXPECT_EQ(recall.depths[5].pairs, 2);
  EXPECT_NEAR(recall.depths[5].mean, (0.5 / 2.5 + 2.0 / 2.5) / 2.0, 1e-6);
  EXPECT_NEAR(recall.depths[5].p5, 0.2, 1e-6);
}

// Every chunk holds one key that answers the questions of the chunk six behind it. Chunks are asked for by their
// landmark query, or, blind, by noise.
TestLayer needles(bool blind) {
  constexpr std::int64_t kChunk = 16, kDim = 64, kTokens = 640;
  AttentionProblem problem = problem_of(kTokens, kChunk, 1, 1, kDim, DType::kFloat32);
  TestLayer layer = random_layer(problem, {.window = kChunk, .topk = 2, .scorer = Scorer::kHils}, 9);
  std::vector<float> q(kTokens * kDim), k(kTokens * kDim), retrieval(kTokens * kDim);
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> directions(kTokens / kChunk * kDim);
  for (float& x : directions) x = normal(random) * std::sqrt(2.0f);  // a scaled square of about 16
  for (float& x : k) x = normal(random);
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const std::int64_t chunk = token / kChunk;
    for (std::int64_t x = 0; x < kDim; ++x) {
      const auto at = static_cast<std::size_t>(token * kDim + x);
      const float own = directions[static_cast<std::size_t>(chunk * kDim + x)];
      if (token % kChunk == 3) k[at] = own;
      q[at] = chunk < 6 ? own : directions[static_cast<std::size_t>((chunk - 6) * kDim + x)];
      retrieval[at] = token % kChunk == kChunk - 1 ? own : q[at];
      if (blind) retrieval[at] = normal(random);
    }
  }
  layer.q = stored(q, DType::kFloat32);
  layer.k = stored(k, DType::kFloat32);
  layer.retrieval_q = stored(retrieval, DType::kFloat32);
  return layer;
}

TEST(Recall, tells_a_scorer_that_finds_the_needles_from_a_blind_one) {
  const Recall found = measure(needles(false), 3, {1.0, 1, 1}).recall;
  const Recall lost = measure(needles(true), 3, {1.0, 1, 1}).recall;
  EXPECT_GT(found.depths[9].mean, 0.9);
  EXPECT_GT(found.all.mean, 0.9);
  EXPECT_LT(lost.depths[9].mean, 0.5);
  EXPECT_TRUE(lost.collapses());
}

}  // namespace
}  // namespace ringmark::test
