#include "tests/support/gradient_examples.h"

#include <cmath>
#include <span>

namespace ringmark::test {
namespace {

std::vector<std::byte> bytes_of(const std::vector<double>& values) {
  const std::vector<float> narrow(values.begin(), values.end());
  const auto bytes = std::as_bytes(std::span(narrow));
  return {bytes.begin(), bytes.end()};
}

TestLayer line(const AttentionPolicy& policy, const std::vector<double>& q, const std::vector<double>& retrieval_q,
               const std::vector<double>& k, const std::vector<double>& v) {
  AttentionProblem problem;
  problem.tokens = static_cast<std::int64_t>(q.size());
  problem.head_dim = 1;
  problem.chunk_size = 2;
  problem.scale = 1.0f;
  problem.dtype = DType::kFloat32;
  return {problem, policy, bytes_of(q), bytes_of(retrieval_q), bytes_of(k), bytes_of(v)};
}

constexpr double kLn3 = 1.0986122886681098;

// Exact attention of row 1 with weights 1/4 and 3/4: o = 4, ds_0 = 1/4 (1 - 4), ds_1 = 3/4 (5 - 4).
GradientExample two_keys() {
  return {"two keys",
          line({2, 0, 0, Scorer::kNone}, {0, 1}, {}, {0, kLn3}, {1, 5}),
          {0, 1},
          {{0, 0.75 * kLn3}, {0, 0}, {-0.75, 0.75}, {0.25, 0.75}}};
}

// Keys of 0: chunks {0, 1} and {2, 3} weigh 2/5 each and the window {4} 1/5, o = 3. ds_hat = 2/5 (1.5 - 3) = -0.6 and
// 2/5 (3.5 - 3) = 0.2. Within the chunks ds = 2/5 1/2 (v_j - mean) = -0.1 and 0.1; of the window ds = 1/5 (5 - 3). A
// key of a landmark gets half of ds_hat q~.
GradientExample equal_scores() {
  return {"equal scores",
          line({0, 2, 0, Scorer::kHils}, {0, 0, 0, 0, 1}, {}, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5}),
          {0, 0, 0, 0, 1},
          {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {-0.1 - 0.3, 0.1 - 0.3, -0.1 + 0.1, 0.1 + 0.1, 0.4}, std::vector(5, 0.2)}};
}

// The landmark query of chunk {0, 1} is 1: p = (1/4, 3/4), k' = 3/4 ln 3, b' = ln 4 - 3/4 ln 3. Row 2 scores it with
// q~ = 2 as high as its window, so that both weigh 1/2: o = (3 + 1) / 2, ds_hat = 1/2, A = 1, B = 1/2, and
// dz = -/+ 3/16 ln 3 (A - B q').
GradientExample landmark_query() {
  const double dz = 3.0 / 32.0 * kLn3;
  return {"landmark query",
          line({0, 1, 0, Scorer::kHils}, {0, 0, 1}, {0, 1, 2}, {0, kLn3, 0.75 * kLn3 + std::log(4.0)}, {0, 4, 1}),
          {0, 0, 1},
          {{0, 0, 0.375 * kLn3 - 0.5 * (0.75 * kLn3 + std::log(4.0))},
           {0, dz * kLn3, 0.375 * kLn3},
           {-0.375 - dz + 0.25, 0.375 + dz + 0.75, -0.5},
           {0.125, 0.375, 0.5}}};
}

}  // namespace

std::vector<GradientExample> gradient_examples() { return {two_keys(), equal_scores(), landmark_query()}; }

}  // namespace ringmark::test
