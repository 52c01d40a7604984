#include "kernels/attend_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/exact_checks.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;

Results window_of(const AttentionCase& c, int threads = 1) {
  Results results(c.problem, c.problem.tokens);
  attend_window(c.problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), results.out_view(),
                results.lse_view(), threads);
  return results;
}

// One head over hand-made numbers.
struct Tiny {
  AttentionProblem problem;
  AttentionPolicy policy;
  std::vector<float> q, k, v;

  Results attend() const {
    const partition::SequenceGrid grid(problem, policy);
    const StoredTensor queries(problem.dtype, problem.tokens, problem.heads, problem.head_dim, q);
    const StoredBlocks blocks(problem, grid, k, v);
    std::vector<TokenId> tokens;
    for (std::int64_t token = 0; token < problem.tokens; ++token) tokens.emplace_back(token);
    Results results(problem, problem.tokens);
    attend_window(problem, grid, queries.view(), tokens, {0, problem.tokens}, blocks.table(), results.out_view(),
                  results.lse_view(), 1);
    return results;
  }
};

Tiny tiny(std::int64_t tokens, std::int64_t chunk_size, std::int64_t window) {
  Tiny t;
  t.problem = {.tokens = tokens,
               .head_dim = 1,
               .chunk_size = chunk_size,
               .dtype = DType::kFloat32,
               .scale = 1.0f,
               .cu_seqlens = {}};
  t.policy = {.window = window, .topk = 0};
  return t;
}

TEST(AttendWindow, equal_scores_give_the_mean_value_and_the_log_of_the_count) {
  Tiny t = tiny(2, 64, 64);
  t.q = {0, 0};
  t.k = {5, -7};
  t.v = {2, 4};
  const Results results = t.attend();
  EXPECT_EQ(results.out, (std::vector<float>{2, 3}));
  EXPECT_EQ(results.lse, (std::vector<float>{0, std::log(2.0f)}));
}

TEST(AttendWindow, a_score_of_ln_3_weighs_three_times_a_score_of_0) {
  Tiny t = tiny(2, 64, 64);
  t.q = {1, 1};
  t.k = {0, std::log(3.0f)};
  t.v = {0, 4};
  const Results results = t.attend();
  EXPECT_NEAR(results.out[1], 3.0f, 1e-6);
  EXPECT_NEAR(results.lse[1], std::log(4.0f), 1e-6);
}

TEST(AttendWindow, window_of_one_token_in_chunks_of_one_sees_only_itself) {
  Tiny t = tiny(3, 1, 1);
  t.q = {1, 2, 3};
  t.k = {10, 20, 30};
  t.v = {7, 8, 9};
  const Results results = t.attend();
  EXPECT_EQ(results.out, (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(results.lse, (std::vector<float>{10, 40, 90}));
}

TEST(AttendWindow, one_hot_values_and_a_window_of_one_give_the_identity) {
  Tiny t = tiny(256, 1, 1);
  t.problem.head_dim = 256;
  t.q.assign(256 * 256, 0.5f);
  t.k = t.q;
  t.v.assign(256 * 256, 0.0f);
  for (std::size_t i = 0; i < 256; ++i) t.v[i * 256 + i] = 1.0f;
  EXPECT_EQ(t.attend().out, t.v);
}

TEST(AttendWindow, random_problems_match_fp64) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, random_policy(random, problem), random());
    const Results results = window_of(c, 1 + trial % 3);
    ASSERT_NO_FATAL_FAILURE(check_samples(c, results, 30, random, kBound, [&](std::int64_t row, std::int64_t head) {
      return attend_exactly(c, row, head, window_keys(c.grid, TokenId(row)));
    }));
  }
}

TEST(AttendWindow, bits_depend_on_neither_range_threads_nor_instruction_set) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, random_policy(random, problem), random());
    const Results whole = window_of(c);
    ASSERT_NO_FATAL_FAILURE(check_ranges(problem, Results(problem, problem.tokens), whole, trial % 2 == 0, random,
                                         [&](Results& parts, RowRange rows) {
                                           attend_window(problem, c.grid, c.queries.view(), c.tokens, rows,
                                                         c.blocks.table(), parts.out_view(), parts.lse_view(), 2);
                                         }));
  }
}

TEST(AttendWindow, rows_may_come_in_any_order_of_tokens) {
  AttentionProblem problem{
      .tokens = 200, .heads = 2, .head_dim = 16, .chunk_size = 16, .dtype = DType::kFloat32, .cu_seqlens = {}};
  AttentionCase c(problem, {.window = 40, .sinks = 3}, 3);
  const Results ordered = window_of(c);
  std::vector<TokenId> tokens = c.tokens;
  std::shuffle(tokens.begin(), tokens.end(), c.random);
  std::vector<float> rows;
  for (const TokenId token : tokens) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const std::vector<float> query = c.queries.row(token.value(), head);
      rows.insert(rows.end(), query.begin(), query.end());
    }
  }
  const StoredTensor queries(problem.dtype, 200, 2, 16, rows);
  Results shuffled(problem, 200);
  attend_window(problem, c.grid, queries.view(), tokens, {0, 200}, c.blocks.table(), shuffled.out_view(),
                shuffled.lse_view(), 1);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto token = static_cast<std::size_t>(tokens[row].value());
    for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(shuffled.out[row * 32 + i], ordered.out[token * 32 + i]);
  }
}

// Zero queries make every key weigh the same: lse is the log of how often keys were counted. Public bug 7 (an lse in
// base 2) and 39 (sinks inside the window or the window's first chunk counted twice).
TEST(AttendWindow, lse_of_n_equal_scores_is_ln_n_and_every_key_counts_once) {
  std::mt19937_64 random(4);
  for (const std::int64_t sinks : {0, 1, 4, 66, 500}) {
    for (const std::int64_t window : {0, 1, 64, 100, 400}) {
      AttentionProblem problem{
          .tokens = 330, .head_dim = 8, .chunk_size = 64, .landmark_slots = sinks % 2 == 0, .cu_seqlens = {}};
      AttentionCase c(problem, {.window = window, .sinks = sinks}, random());
      const StoredTensor zeros(problem.dtype, 330, 1, 8, std::vector<float>(330 * 8, 0.0f));
      Results results(problem, 330);
      attend_window(problem, c.grid, zeros.view(), c.tokens, c.all(), c.blocks.table(), results.out_view(),
                    results.lse_view(), 1);
      for (std::int64_t row = 0; row < 330; ++row) {
        const auto keys = static_cast<double>(window_keys(c.grid, TokenId(row)).size());
        ASSERT_NEAR(results.lse[static_cast<std::size_t>(row)], std::log(keys), 1e-6) << "row " << row;
      }
    }
  }
}

// Public bug 2: a row whose scores are all -inf came out NaN. Public bug 3: its output was never written.
TEST(AttendWindow, a_row_of_minus_infinity_scores_is_zero_with_lse_minus_infinity) {
  Tiny t = tiny(5, 8, 8);
  t.q.assign(5, 1.0f);
  t.k.assign(5, kMinusInfinity);
  t.v.assign(5, 3.0f);
  const Results results = t.attend();
  EXPECT_EQ(results.out, std::vector<float>(5, 0.0f));
  EXPECT_EQ(results.lse, std::vector<float>(5, kMinusInfinity));
}

TEST(AttendWindow, a_key_that_is_not_a_number_reaches_only_the_rows_that_see_it) {
  for (const std::int64_t poisoned : {0, 37, 64, 129}) {
    AttentionProblem problem{
        .tokens = 200, .heads = 1, .head_dim = 48, .chunk_size = 64, .dtype = DType::kFloat32, .cu_seqlens = {}};
    AttentionCase c(problem, {.window = 64, .sinks = 5}, 6);
    const Results clean = window_of(c);
    for (const float poison : {kNaN, -kMinusInfinity}) {
      std::vector<float> keys = AttentionCase::all_rows(c.keys);
      std::vector<float> values = AttentionCase::all_rows(c.values);
      std::fill_n(keys.begin() + poisoned * 48, 48, kNaN);
      std::fill_n(values.begin() + poisoned * 48, 48, poison);
      const StoredBlocks blocks(problem, c.grid, keys, values);
      Results results(problem, 200);
      attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), blocks.table(), results.out_view(),
                    results.lse_view(), 1);
      for (std::int64_t row = 0; row < 200; ++row) {
        const std::vector<TokenId> seen = window_keys(c.grid, TokenId(row));
        const bool sees = std::find(seen.begin(), seen.end(), TokenId(poisoned)) != seen.end();
        const auto at = static_cast<std::size_t>(row * 48);
        if (sees) {
          ASSERT_TRUE(std::isnan(results.out[at])) << "row " << row;
        } else {
          ASSERT_EQ(results.out[at], clean.out[at]) << "row " << row << " poisoned by " << poisoned;
        }
      }
    }
  }
}

TEST(AttendWindow, packed_documents_give_the_bits_of_each_document_alone) {
  const std::vector<std::int64_t> starts = {0, 5, 5, 6, 136, 136};
  AttentionProblem problem{.tokens = 136, .heads = 2, .head_dim = 32, .chunk_size = 16, .cu_seqlens = starts};
  const AttentionPolicy policy{.window = 20, .sinks = 2};
  const AttentionCase c(problem, policy, 7);
  const Results packed = window_of(c);
  for (std::size_t document = 0; document + 1 < starts.size(); ++document) {
    AttentionProblem alone = problem;
    alone.tokens = starts[document + 1] - starts[document];
    alone.cu_seqlens.clear();
    if (alone.tokens == 0) continue;
    const auto slice = [&](const std::vector<float>& all, std::int64_t row_floats) {
      return std::vector<float>(all.begin() + starts[document] * row_floats,
                                all.begin() + starts[document + 1] * row_floats);
    };
    const partition::SequenceGrid grid(alone, policy);
    const StoredTensor queries(alone.dtype, alone.tokens, 2, 32, slice(AttentionCase::all_rows(c.queries), 64));
    const StoredBlocks blocks(alone, grid, slice(AttentionCase::all_rows(c.keys), 32),
                              slice(AttentionCase::all_rows(c.values), 32));
    Results results(alone, alone.tokens);
    attend_window(alone, grid, queries.view(), c.tokens, {0, alone.tokens}, blocks.table(), results.out_view(),
                  results.lse_view(), 1);
    EXPECT_TRUE(same_bits(results.out, slice(packed.out, 64))) << "document " << document;
  }
}

// Public bug 43: value heads that carry their own number show which one a query head was given.
TEST(AttendWindow, query_heads_use_the_kv_head_of_their_group) {
  for (const auto& [heads, kv_heads] : {std::pair<int, int>{28, 7}, {8, 1}, {40, 8}, {16, 2}}) {
    AttentionProblem problem{
        .tokens = 40, .heads = heads, .kv_heads = kv_heads, .head_dim = 8, .chunk_size = 16, .cu_seqlens = {}};
    const AttentionCase c(problem, {.window = 20}, 8);
    std::vector<float> values(static_cast<std::size_t>(40 * kv_heads * 8));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i / 8 % static_cast<std::size_t>(kv_heads));
    }
    const StoredBlocks blocks(problem, c.grid, AttentionCase::all_rows(c.keys), values);
    Results results(problem, 40);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), blocks.table(), results.out_view(),
                  results.lse_view(), 2);
    for (std::int64_t i = 0; i < 40 * heads; ++i) {
      const std::int64_t kv_head = i % heads / (heads / kv_heads);
      ASSERT_NEAR(results.out[static_cast<std::size_t>(i * 8)], static_cast<float>(kv_head), 1e-5);
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels
