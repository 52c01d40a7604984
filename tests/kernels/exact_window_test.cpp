// Windows that begin at a token or before a segment, and sinks that are attended with queries of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attend_window.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;
constexpr std::int64_t kChunk = 16;

// The keys of the definition, from the tokens alone.
std::vector<TokenId> keys_by_definition(const AttentionProblem& problem, const AttentionPolicy& policy,
                                        std::int64_t token) {
  const std::vector<std::int64_t> starts = problem.starts();
  const std::int64_t start = *(std::upper_bound(starts.begin(), starts.end(), token) - 1);
  const std::int64_t o = token - start;
  const std::int64_t segment = policy.edge == WindowEdge::kSegment ? o / policy.segment * policy.segment : 0;
  std::vector<TokenId> keys;
  for (std::int64_t j = 0; j <= o; ++j) {
    const bool in_window = policy.edge == WindowEdge::kToken ? o - j < policy.window : j >= segment - policy.window;
    const bool is_landmark = problem.landmark_slots && j % problem.chunk_size == problem.chunk_size - 1;
    if ((in_window || j < policy.sinks) && !is_landmark) keys.emplace_back(start + j);
  }
  return keys;
}

Results window_of(const AttentionCase& c, const RowsView* sink_queries = nullptr) {
  Results results(c.problem, c.problem.tokens);
  attend_window(c.problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), results.out_view(),
                results.lse_view(), 2, sink_queries);
  return results;
}

void expect_rows(const AttentionCase& c, const Results& got, const std::string& what) {
  for (std::int64_t row = 0; row < c.problem.tokens; row += 3) {
    for (std::int64_t head = 0; head < c.problem.heads; ++head) {
      const ExactRow exact = attend_exactly(c, row, head, keys_by_definition(c.problem, c.policy, row));
      const std::int64_t at = row * c.problem.heads + head;
      if (exact.lse == double{kMinusInfinity}) {
        ASSERT_EQ(got.lse[static_cast<std::size_t>(at)], kMinusInfinity) << what << " row " << row;
      } else {
        ASSERT_NEAR(got.lse[static_cast<std::size_t>(at)], exact.lse, kBound) << what << " row " << row;
      }
      for (std::int64_t k = 0; k < c.problem.head_dim; ++k) {
        ASSERT_NEAR(got.out[static_cast<std::size_t>(at * c.problem.head_dim + k)],
                    exact.out[static_cast<std::size_t>(k)], kBound)
            << what << " row " << row << " head " << head;
      }
    }
  }
}

AttentionProblem problem_of(std::int64_t head_dim, DType dtype, bool slots) {
  AttentionProblem problem{.tokens = 3 * kChunk + 11,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = head_dim,
                           .chunk_size = kChunk,
                           .dtype = dtype,
                           .landmark_slots = slots};
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  problem.cu_seqlens = {0, 7, 7, problem.tokens};
  return problem;
}

// By hand: equal logits, so that the lse counts the keys. W = 3: rows 0, 1, 2, 5 see 1, 2, 3, 3 keys; the mean of
// values 0, 1, 2, ... is that of the last three tokens.
TEST(ExactWindow, counts_its_keys) {
  AttentionProblem problem{.tokens = 6, .head_dim = 1, .chunk_size = 4, .dtype = DType::kFloat32};
  const AttentionPolicy policy{.window = 3, .topk = 0, .edge = WindowEdge::kToken};
  const partition::SequenceGrid grid(problem, policy);
  const StoredTensor queries(problem.dtype, 6, 1, 1, std::vector<float>(6, 0.0f));
  const StoredBlocks blocks(problem, grid, std::vector<float>(6, 9.0f), {0, 1, 2, 3, 4, 5});
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < 6; ++token) tokens.emplace_back(token);
  Results got(problem, 6);
  attend_window(problem, grid, queries.view(), tokens, {0, 6}, blocks.table(), got.out_view(), got.lse_view(), 1);
  const std::vector<float> means = {0, 0.5f, 1, 2, 3, 4};
  for (std::size_t row = 0; row < 6; ++row) {
    EXPECT_NEAR(got.out[row], means[row], 1e-6f);
    EXPECT_NEAR(got.lse[row], std::log(static_cast<float>(std::min<std::size_t>(row + 1, 3))), 1e-6f);
  }
}

TEST(ExactWindow, matches_brute_force_around_the_chunk) {
  std::uint64_t seed = 1;
  for (const std::int64_t head_dim : {32, 64, 80, 96, 128, 256}) {
    const DType dtype = std::array{DType::kFloat32, DType::kBfloat16, DType::kFloat16}[seed % 3];
    AttentionProblem problem = problem_of(head_dim, dtype, seed % 2 == 0);
    problem.logit_cap = seed % 3 == 0 ? 2.0f : 0.0f;
    problem.alibi = seed % 4 == 1;
    for (const std::int64_t window : {std::int64_t{1}, kChunk - 1, kChunk, kChunk + 1, problem.tokens + 5}) {
      for (const std::int64_t sinks : {0, 1, 5, 20}) {
        const AttentionCase c(problem, {.window = window, .topk = 0, .sinks = sinks, .edge = WindowEdge::kToken}, seed);
        expect_rows(c, window_of(c), "W " + std::to_string(window) + " sinks " + std::to_string(sinks));
      }
    }
    ++seed;
  }
}

TEST(ExactWindow, segments_match_brute_force) {
  std::uint64_t seed = 1;
  for (const std::int64_t segment : {std::int64_t{1}, std::int64_t{5}, kChunk, 2 * kChunk, std::int64_t{1000}}) {
    for (const std::int64_t window : {std::int64_t{0}, std::int64_t{3}, kChunk, std::int64_t{1000}}) {
      AttentionProblem problem = problem_of(64, DType::kFloat32, seed % 2 == 0);
      problem.alibi = seed % 3 == 0;
      const AttentionPolicy policy{.window = window,
                                   .topk = 0,
                                   .sinks = static_cast<std::int64_t>(seed % 4),
                                   .edge = WindowEdge::kSegment,
                                   .segment = segment};
      const AttentionCase c(problem, policy, seed++);
      expect_rows(c, window_of(c), "L " + std::to_string(segment) + " M " + std::to_string(window));
    }
  }
}

// The window of the whole document is the same set of keys whichever way it is asked for.
TEST(ExactWindow, a_window_of_everything_has_the_bits_of_the_aligned_one) {
  const AttentionProblem problem = problem_of(80, DType::kBfloat16, true);
  AttentionPolicy policy{.window = problem.tokens + 1, .topk = 0};
  const AttentionCase aligned(problem, policy, 5);
  policy.edge = WindowEdge::kToken;
  const AttentionCase exact(problem, policy, 5);
  EXPECT_TRUE(same_bits(window_of(aligned).out, window_of(exact).out));
  EXPECT_TRUE(same_bits(window_of(aligned).lse, window_of(exact).lse));
}

TEST(ExactWindow, what_is_not_a_number_reaches_only_the_rows_that_see_it) {
  AttentionProblem problem{.tokens = 100, .head_dim = 40, .chunk_size = kChunk, .dtype = DType::kFloat32};
  const AttentionPolicy policy{.window = 20, .topk = 0, .sinks = 3, .edge = WindowEdge::kToken};
  const AttentionCase c(problem, policy, 6);
  const Results clean = window_of(c);
  for (const std::int64_t poisoned : {1, 16, 40, 47, 99}) {
    for (const float poison : {kNaN, -kMinusInfinity}) {
      std::vector<float> keys = AttentionCase::all_rows(c.keys), values = AttentionCase::all_rows(c.values);
      std::fill_n(keys.begin() + poisoned * 40, 40, kNaN);
      std::fill_n(values.begin() + poisoned * 40, 40, poison);
      const StoredBlocks blocks(problem, c.grid, keys, values);
      Results got(problem, 100);
      attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), blocks.table(), got.out_view(),
                    got.lse_view(), 1);
      for (std::int64_t row = 0; row < 100; ++row) {
        const std::vector<TokenId> seen = keys_by_definition(problem, policy, row);
        const auto at = static_cast<std::size_t>(row * 40);
        if (std::find(seen.begin(), seen.end(), TokenId(poisoned)) != seen.end()) {
          ASSERT_TRUE(std::isnan(got.out[at])) << "row " << row;
        } else {
          ASSERT_EQ(got.out[at], clean.out[at]) << "row " << row << " poisoned by " << poisoned;
        }
      }
    }
  }
}

// Sink queries are used for the sinks below the window, for no key of the window, and no key counts twice.
TEST(SinkQueries, attend_to_sinks_below_the_window_alone) {
  std::uint64_t seed = 1;
  for (const std::int64_t window : {1, 10, 16, 30}) {
    for (const std::int64_t sinks : {1, 4, 16, 21}) {
      const AttentionProblem problem = problem_of(48, DType::kFloat32, seed % 2 == 0);
      const AttentionPolicy policy{.window = window, .topk = 0, .sinks = sinks, .edge = WindowEdge::kToken};
      AttentionCase c(problem, policy, seed++);
      const StoredTensor others(problem.dtype, problem.tokens, problem.heads, problem.head_dim,
                                normal_floats(c.random, problem.tokens * problem.heads * problem.head_dim));
      const Results got = window_of(c, &others.view());
      for (std::int64_t row = 0; row < problem.tokens; ++row) {
        for (std::int64_t head = 0; head < problem.heads; ++head) {
          double mass = 0.0;
          for (const TokenId key : keys_by_definition(problem, policy, row)) {
            const StoredTensor& queries = row - key.value() < window ? c.queries : others;
            mass += std::exp(double{problem.scale} *
                             dot(queries.row(row, head), c.keys.row(key.value(), head / problem.group())));
          }
          if (mass == 0.0) continue;
          ASSERT_NEAR(got.lse[static_cast<std::size_t>(row * problem.heads + head)], std::log(mass), kBound)
              << "W " << window << " sinks " << sinks << " row " << row;
        }
      }
      EXPECT_TRUE(same_bits(window_of(c, &c.queries.view()).out, window_of(c).out));
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels
