// The reference is the definition; it is held against hand-worked examples and against the float64 results of the real
// layer, which an independent program made.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/attention.h"
#include "tests/support/golden_layer.h"

namespace ringmark::test {
namespace {

using kernels::reference::Landmark;
using kernels::reference::Layer;
using kernels::reference::Result;

// One head of dimension 1, scale 1, no landmark slots.
Layer line(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
           std::int64_t chunk_size, std::int64_t topk) {
  AttentionProblem problem;
  problem.tokens = static_cast<std::int64_t>(q.size());
  problem.head_dim = 1;
  problem.chunk_size = chunk_size;
  problem.scale = 1.0f;
  AttentionPolicy policy;
  policy.window = 0;
  policy.topk = topk;
  return {problem, policy, q, q, k, v};
}

Result attend_last(const Layer& layer) {
  const std::vector<TokenId> query = {TokenId(layer.problem.tokens - 1)};
  return kernels::reference::attend(layer, query, 1);
}

// All keys 0: every logit is 0. The window {4} has lse 0; chunks {0,1} and {2,3} have k' = 0 and b' = ln 2 each. The
// weights are 2 : 2 : 1, the output (2 * 1.5 + 2 * 3.5 + 5) / 5 = 3, the mean of all values; lse = ln 5.
TEST(Reference, equal_scores_give_the_mean) {
  const Result result = attend_last(line({0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5}, 2, 2));
  EXPECT_NEAR(result.out[0], 3.0, 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(5.0), 1e-12);
  EXPECT_EQ(result.lse_window[0], 0.0);
}

// Same, K = 1: scores tie, the lower chunk is chosen: (2 * 1.5 + 5) / 3.
TEST(Reference, ties_go_to_the_lower_chunk) {
  const Result result = attend_last(line({0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5}, 2, 1));
  EXPECT_EQ(result.selection.chunks, (std::vector<std::int32_t>{0}));
  EXPECT_NEAR(result.out[0], 8.0 / 3.0, 1e-12);
}

// Chunks of one key: k' = k, b' = 0, so that choosing all chunks is exact attention: weights e^0, e^1, e^2 for q = 1.
TEST(Reference, single_key_chunks_are_exact_attention) {
  const Result result = attend_last(line({1, 1, 1}, {0, 1, 2}, {1, 0, 0}, 1, 8));
  EXPECT_NEAR(result.out[0], 1.0 / (1.0 + std::exp(1.0) + std::exp(2.0)), 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(1.0 + std::exp(1.0) + std::exp(2.0)), 1e-12);
}

TEST(Reference, golden_layer) {
  const GoldenLayer golden = load_golden(2048);
  const Layer layer = golden.layer.widened();
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  double worst = 0.0;
  for (std::int64_t c = 0; c < 32; ++c) {
    for (std::int64_t h = 0; h < layer.problem.heads; ++h) {
      const Landmark landmark = kernels::reference::landmark_of(layer, grid, ChunkId(c), h);
      const auto at = static_cast<std::size_t>(c * layer.problem.heads + h);
      worst = std::max(worst, std::fabs(landmark.bias - golden.landmark_bias[at]));
      for (std::size_t x = 0; x < landmark.key.size(); ++x) {
        worst = std::max(worst, std::fabs(landmark.key[x] - golden.landmark_keys[at * landmark.key.size() + x]));
      }
    }
  }
  EXPECT_LE(worst, 1e-6) << "landmarks";
  const Result result = run_reference(golden.layer);
  const auto difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    double most = 0.0;
    for (std::size_t i = 0; i < b.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
    return most;
  };
  EXPECT_LE(difference(result.out, golden.out), 1e-6);
  EXPECT_LE(difference(result.lse_window, golden.lse_window), 1e-6);
  EXPECT_LE(difference(result.lse, golden.lse), 1e-6);
  EXPECT_EQ(result.selection.chunks, golden.chunks);
}

// With the oracle's scores and every chunk chosen, the hierarchical softmax is exact causal attention.
TEST(Reference, oracle_with_all_chunks_is_dense_attention) {
  AttentionProblem problem;
  problem.tokens = 150;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 16;
  problem.chunk_size = 16;
  AttentionPolicy sparse{20, 1000, 0, Scorer::kOracle};
  AttentionPolicy dense{150, 0, 0, Scorer::kNone};
  const Result a = run_reference(random_layer(problem, sparse, 4));
  const Result b = run_reference(random_layer(problem, dense, 4));
  for (std::size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 1e-12);
  for (std::size_t i = 0; i < a.lse.size(); ++i) ASSERT_NEAR(a.lse[i], b.lse[i], 1e-12);
}

}  // namespace
}  // namespace ringmark::test
