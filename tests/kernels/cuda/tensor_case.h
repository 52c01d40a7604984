// Random attention problems of the shapes that have tensor core kernels, their exact results and what may differ from
// them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {

// A weight is rounded to fp16 in every layer before it meets its value: half a unit in the last place, 2^-12, times the
// distance of a value from the output, up to 6.
inline constexpr double kOutBound = 1.5e-3;
inline constexpr double kMeanBound = 6e-5;
inline constexpr double kLseBound = 2e-5;

inline std::string words(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  std::ostringstream text;
  text << name_of(p.dtype) << " d " << p.head_dim << " group " << p.group() << " tokens " << p.tokens << " slots "
       << p.landmark_slots << " window " << c.policy.window << " sinks " << c.policy.sinks << " topk " << c.policy.topk
       << " documents";
  for (const std::int64_t start : p.cu_seqlens) text << ' ' << start;
  return text.str();
}

inline void expect_close(const AttentionProblem& p, const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(first_differences(got, want, p.heads, p.head_dim, kOutBound), "");
  double sum = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += std::fabs(double{got[i]} - double{want[i]});
  EXPECT_LE(sum / static_cast<double>(got.size()), kMeanBound);
}

// The inputs of a case, widened once.
struct Exact {
  explicit Exact(const AttentionCase& attention)
      : c(attention),
        q(AttentionCase::all_rows(c.queries)),
        k(AttentionCase::all_rows(c.keys)),
        v(AttentionCase::all_rows(c.values)) {}

  // As attend_exactly.
  ExactRow attend(std::int64_t row, std::int64_t head, const std::vector<TokenId>& seen) const {
    const auto d = static_cast<std::size_t>(c.problem.head_dim);
    const float* query = q.data() + static_cast<std::size_t>(row * c.problem.heads + head) * d;
    ExactRow result{std::vector<double>(d, 0.0)};
    std::vector<double> scores(seen.size(), 0.0);
    double top = -std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < seen.size(); ++j) {
      const float* key = k.data() + at(seen[j], head);
      for (std::size_t i = 0; i < d; ++i) scores[j] += double{query[i]} * double{key[i]};
      scores[j] *= double{c.problem.scale};
      top = std::max(top, scores[j]);
    }
    double sum = 0.0;
    for (std::size_t j = 0; j < seen.size(); ++j) {
      const double weight = std::exp(scores[j] - top);
      const float* value = v.data() + at(seen[j], head);
      for (std::size_t i = 0; i < d; ++i) result.out[i] += weight * double{value[i]};
      sum += weight;
    }
    if (seen.empty()) return result;
    for (double& component : result.out) component /= sum;
    result.lse = top + std::log(sum);
    return result;
  }

  std::size_t at(TokenId token, std::int64_t head) const {
    return static_cast<std::size_t>((token.value() * c.problem.kv_heads + head / c.problem.group()) *
                                    c.problem.head_dim);
  }

  const AttentionCase& c;
  std::vector<float> q, k, v;
};

// Calls exact_row(row, head) for all rows and collects the results.
template <class ExactRowOf>
Results exact_results(const AttentionProblem& p, const ExactRowOf& exact_row) {
  Results results(p, p.tokens);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t row = 0; row < p.tokens; ++row) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const ExactRow exact = exact_row(row, head);
      const std::int64_t at = row * p.heads + head;
      results.lse[static_cast<std::size_t>(at)] = static_cast<float>(exact.lse);
      for (std::size_t i = 0; i < exact.out.size(); ++i) {
        results.out[static_cast<std::size_t>(at * p.head_dim) + i] = static_cast<float>(exact.out[i]);
      }
    }
  }
  return results;
}

inline Results exact_window(const AttentionCase& c) {
  const Exact exact(c);
  return exact_results(c.problem, [&](std::int64_t row, std::int64_t head) {
    return exact.attend(row, head, window_keys(c.grid, TokenId(row)));
  });
}

inline AttentionProblem problem_of(DType dtype, std::int64_t head_dim, std::int64_t group, std::int64_t tokens,
                                   std::mt19937_64& random) {
  AttentionProblem problem;
  problem.dtype = dtype;
  problem.head_dim = head_dim;
  problem.kv_heads = group == 16 ? 1 : pick<std::int64_t>(random, {1, 2, 3});
  problem.heads = problem.kv_heads * group;
  problem.tokens = tokens;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  problem.landmark_slots = pick<int>(random, {0, 1}) == 1;
  if (pick<int>(random, {0, 1}) == 0) {
    std::vector<std::int64_t> cuts = {0, tokens};
    for (int i = 0; i < 4; ++i) cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, tokens)(random));
    std::sort(cuts.begin(), cuts.end());
    problem.cu_seqlens = cuts;
  }
  return problem;
}

inline AttentionPolicy policy_of(const AttentionProblem& problem, std::mt19937_64& random) {
  AttentionPolicy policy;
  policy.window = pick<std::int64_t>(random, {0, 1, 64, 100, problem.tokens + 1});
  policy.sinks = pick<std::int64_t>(random, {0, 0, 1, 4, 66, 130});
  policy.topk = pick<std::int64_t>(random, {1, 3, 8, 64});
  return policy;
}

// Calls check(problem, policy, seed) for every type, width, group and token count; stops at the first that fails.
template <class Check>
void for_shapes(std::uint64_t seed, const Check& check) {
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t group : {1, 2, 4, 8, 16}) {
        for (const std::int64_t tokens : {1, 63, 64, 65, 129, 700}) {
          const AttentionProblem problem = problem_of(dtype, head_dim, group, tokens, random);
          const AttentionPolicy policy = policy_of(problem, random);
          check(problem, policy, random());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

inline std::vector<std::int64_t> random_cuts(std::int64_t rows, std::mt19937_64& random) {
  std::vector<std::int64_t> cuts = {0};
  while (cuts.back() < rows) {
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(cuts.back() + 1, rows)(random));
  }
  return cuts;
}

}  // namespace ringmark::kernels::cuda
