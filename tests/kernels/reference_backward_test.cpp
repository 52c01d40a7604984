// The fp64 gradients against examples by hand and against central differences of the fp64 forward, whose choice of
// chunks is held fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/reference/backward.h"
#include "tests/support/gradient_examples.h"

namespace ringmark::test {
namespace {

using kernels::Selection;
using kernels::reference::Gradients;
using kernels::reference::Layer;
using partition::SequenceGrid;

double worst_difference(const std::vector<double>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(got[i] - want[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst;
}

// In the test's own words, from the definition of the mixture: sum over the rows and heads of g . o.
class Loss {
 public:
  Loss(const Selection& selection, const std::vector<double>& out_gradient)
      : selection_(selection), out_gradient_(out_gradient) {}

  double operator()(const Layer& layer) const {
    const SequenceGrid grid(layer.problem, layer.policy);
    double loss = 0.0;
    for (std::int64_t i = 0; i < layer.problem.tokens; ++i) {
      for (std::int64_t h = 0; h < layer.problem.heads; ++h) loss += of_row(layer, grid, i, h);
    }
    return loss;
  }

 private:
  // g . o of one softmax over keys, and its lse.
  std::pair<double, double> part(const Layer& layer, std::int64_t i, std::int64_t h,
                                 const std::vector<std::int64_t>& keys) const {
    const AttentionProblem& p = layer.problem;
    const std::int64_t d = p.head_dim;
    double mass = 0.0;
    double sum = 0.0;
    for (const std::int64_t j : keys) {
      const std::int64_t at = (j * p.kv_heads + h / p.group()) * d;
      double logit = 0.0;
      double value = 0.0;
      for (std::int64_t x = 0; x < d; ++x) {
        logit += p.scale * layer.q[static_cast<std::size_t>((i * p.heads + h) * d + x)] *
                 layer.k[static_cast<std::size_t>(at + x)];
        value += out_gradient_[static_cast<std::size_t>((i * p.heads + h) * d + x)] *
                 layer.v[static_cast<std::size_t>(at + x)];
      }
      mass += std::exp(logit);
      sum += std::exp(logit) * value;
    }
    return keys.empty() ? std::pair{0.0, -HUGE_VAL} : std::pair{sum / mass, std::log(mass)};
  }

  double of_row(const Layer& layer, const SequenceGrid& grid, std::int64_t i, std::int64_t h) const {
    const AttentionProblem& p = layer.problem;
    std::vector<std::int64_t> nearby;
    for (std::int64_t j = 0; j <= i; ++j) {
      const TokenId token(j);
      const bool seen = grid.window_of(TokenId(i)).contains(token) || grid.sinks_of(TokenId(i)).contains(token);
      if (seen && grid.is_key(token)) nearby.push_back(j);
    }
    std::vector<std::pair<double, double>> parts = {part(layer, i, h, nearby)};
    const auto& scoring = layer.policy.scorer == Scorer::kHils ? layer.retrieval_q : layer.q;
    for (const std::int32_t c : selection_.chosen(i, h / p.group())) {
      const auto landmark = kernels::reference::landmark_of(layer, grid, ChunkId(c), h);
      double score = landmark.bias;
      for (std::int64_t x = 0; x < p.head_dim; ++x) {
        score += p.scale * scoring[static_cast<std::size_t>((i * p.heads + h) * p.head_dim + x)] *
                 landmark.key[static_cast<std::size_t>(x)];
      }
      std::vector<std::int64_t> keys;
      for (TokenId j = grid.keys_of(ChunkId(c)).begin; j < grid.keys_of(ChunkId(c)).end; ++j) keys.push_back(j.value());
      parts.emplace_back(part(layer, i, h, keys).first, score);
    }
    double mass = 0.0;
    double sum = 0.0;
    for (const auto& [value, lse] : parts) {
      mass += std::exp(lse);
      sum += std::exp(lse) * value;
    }
    return mass == 0.0 ? 0.0 : sum / mass;
  }

  const Selection& selection_;
  const std::vector<double>& out_gradient_;
};

struct Case {
  Layer layer;
  bool own_retrieval = true;
  Selection selection;
  std::vector<double> out_gradient;
};

Case random_case(const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed,
                 bool own_retrieval = true) {
  problem.validate();
  policy.validate(problem);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t heads) {
    std::vector<double> values(static_cast<std::size_t>(problem.tokens * heads * problem.head_dim));
    for (double& value : values) value = normal(random);
    return values;
  };
  Case of;
  of.layer = {problem, policy, draw(problem.heads), {}, draw(problem.kv_heads), draw(problem.kv_heads)};
  of.own_retrieval = own_retrieval;
  of.layer.retrieval_q = own_retrieval ? draw(problem.heads) : of.layer.q;
  of.out_gradient = draw(problem.heads);
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < problem.tokens; ++i) tokens.emplace_back(i);
  of.selection = kernels::reference::attend(of.layer, tokens, 1).selection;
  return of;
}

// The largest difference of sampled components from central differences of fourth order, relative to the component or
// to a hundredth of the largest of its tensor.
double worst_error(const Case& of, const Gradients& gradients, int samples) {
  const Loss loss(of.selection, of.out_gradient);
  std::mt19937_64 random(99);
  double worst = 0.0;
  const auto sample = [&](std::vector<double> Layer::*tensor, const std::vector<double>& gradient) {
    double largest = 0.0;
    for (const double g : gradient) largest = std::max(largest, std::fabs(g));
    for (int n = 0; n < samples; ++n) {
      const std::size_t at = random() % gradient.size();
      const auto shifted = [&](double step) {
        Layer layer = of.layer;
        (layer.*tensor)[at] += step;
        if (!of.own_retrieval && tensor == &Layer::q) layer.retrieval_q[at] += step;
        return loss(layer);
      };
      constexpr double kStep = 1e-3;
      const double slope =
          (8.0 * (shifted(kStep) - shifted(-kStep)) - (shifted(2 * kStep) - shifted(-2 * kStep))) / (12.0 * kStep);
      const double size = std::max({std::fabs(gradient[at]), 1e-2 * largest, 1e-12});
      worst = std::max(worst, std::fabs(slope - gradient[at]) / size);
    }
  };
  std::vector<double> q = gradients.q;
  if (!of.own_retrieval) {
    std::transform(q.begin(), q.end(), gradients.retrieval_q.begin(), q.begin(), std::plus<>());
  } else {
    sample(&Layer::retrieval_q, gradients.retrieval_q);
  }
  sample(&Layer::q, q);
  sample(&Layer::k, gradients.k);
  sample(&Layer::v, gradients.v);
  return worst;
}

AttentionProblem small(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = 6;
  problem.chunk_size = 5;
  problem.scale = 0.4f;
  problem.dtype = DType::kFloat32;
  return problem;
}

std::vector<Case> cases() {
  AttentionProblem packed = small(44, 4, 2);
  packed.landmark_slots = true;
  packed.cu_seqlens = {0, 7, 7, 30, 44};
  return {random_case(small(33, 2, 2), {33, 0, 0, Scorer::kNone}, 1),
          random_case(small(33, 4, 2), {0, 2, 0, Scorer::kHils}, 2), random_case(packed, {3, 2, 0, Scorer::kHils}, 3),
          random_case(packed, {6, 9, 2, Scorer::kHils}, 4, false),
          random_case(small(40, 3, 1), {7, 2, 6, Scorer::kMean}, 5, false)};
}

TEST(ReferenceBackward, worked_by_hand) {
  for (const GradientExample& example : gradient_examples()) {
    const Layer layer = example.layer.widened();
    const Selection selection = run_reference(example.layer).selection;
    const std::vector<double> out_gradient(example.out_gradient.begin(), example.out_gradient.end());
    const Gradients got = kernels::reference::backward(layer, selection, out_gradient, 1);
    // ln 3 is rounded to fp32 in the layer.
    EXPECT_LE(worst_difference(got.q, example.want.q), 1e-6) << example.name;
    EXPECT_LE(worst_difference(got.retrieval_q, example.want.retrieval_q), 1e-6) << example.name;
    EXPECT_LE(worst_difference(got.k, example.want.k), 1e-6) << example.name;
    EXPECT_LE(worst_difference(got.v, example.want.v), 1e-6) << example.name;
  }
}

TEST(ReferenceBackward, is_the_slope_of_the_forward) {
  for (const Case& of : cases()) {
    const Gradients gradients = kernels::reference::backward(of.layer, of.selection, of.out_gradient, 2);
    EXPECT_LE(worst_error(of, gradients, 30), 1e-7) << name_of(of.layer.policy.scorer);
  }
}

// The check itself: without what goes through the landmarks, or with one factor a little off, it must not pass.
TEST(ReferenceBackward, a_wrong_gradient_is_not_the_slope) {
  const Case of = cases()[2];
  Gradients gradients = kernels::reference::backward(of.layer, of.selection, of.out_gradient, 1);
  Gradients scaled = gradients;
  for (double& component : scaled.k) component *= 1.0 + 1e-5;
  EXPECT_GT(worst_error(of, scaled, 30), 5e-6);
  const SequenceGrid grid(of.layer.problem, of.layer.policy);
  const auto row = static_cast<std::ptrdiff_t>(of.layer.problem.heads * of.layer.problem.head_dim);
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    if (!grid.has_landmark(chunk)) continue;
    std::fill_n(gradients.retrieval_q.begin() + grid.landmark_slot(chunk).value() * row, row, 0.0);
  }
  EXPECT_GT(worst_error(of, gradients, 200), 1e-3);
}

// The loss that the slopes are taken of is the forward that everything else is checked against.
TEST(ReferenceBackward, the_loss_is_that_of_the_reference) {
  for (const Case& of : cases()) {
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < of.layer.problem.tokens; ++i) tokens.emplace_back(i);
    const auto result = kernels::reference::attend(of.layer, tokens, 1);
    const double want = std::inner_product(result.out.begin(), result.out.end(), of.out_gradient.begin(), 0.0);
    EXPECT_NEAR(Loss(of.selection, of.out_gradient)(of.layer), want, 1e-11);
  }
}

TEST(ReferenceBackward, threads_do_not_change_it) {
  const Case of = cases()[2];
  const Gradients one = kernels::reference::backward(of.layer, of.selection, of.out_gradient, 1);
  const Gradients two = kernels::reference::backward(of.layer, of.selection, of.out_gradient, 2);
  EXPECT_EQ(one.k, two.k);
  EXPECT_EQ(one.retrieval_q, two.retrieval_q);
}

}  // namespace
}  // namespace ringmark::test
