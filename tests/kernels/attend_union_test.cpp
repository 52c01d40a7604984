#include "kernels/attend_union.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attend_window.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/exact_checks.h"
#include "tests/kernels/random_selection.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 1e-5;

// A problem with a selection and the results of its windows.
struct UnionCase : AttentionCase {
  UnionCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : AttentionCase(p, wanted, seed), selection(p.tokens, wanted.choosers(p), wanted.topk), window(p, p.tokens) {
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
        choose_at_random(grid, random, 2, row, chooser, selection,
                         [&] { return static_cast<std::size_t>(selection.topk); });
      }
    }
    attend_window(p, grid, queries.view(), tokens, all(), blocks.table(), window.out_view(), window.lse_view(), 1);
  }

  std::span<const std::int32_t> chosen(std::int64_t row, std::int64_t head) const {
    return selection.chosen(row, head / (problem.heads / selection.choosers));
  }

  void attend(Results& results, RowRange rows, int threads) const {
    attend_union(problem, grid, queries.view(), selection, rows, blocks.table(), results.out_view(), results.lse_view(),
                 threads);
  }

  std::vector<TokenId> keys_of(std::int64_t row, std::int64_t head) const {
    std::vector<TokenId> list = window_keys(grid, TokenId(row));
    for (const std::int32_t chunk : chosen(row, head)) {
      const Range<TokenId> more = grid.keys_of(ChunkId(chunk));
      for (TokenId token = more.begin; token < more.end; ++token) list.push_back(token);
    }
    return list;
  }

  Selection selection;
  Results window;
};

// Two tokens in chunks of one; the second, whose query is 1, has chosen the first one's chunk.
std::pair<float, float> unite_two(float window_out, float window_lse, float key, float value) {
  const AttentionProblem problem{
      .tokens = 2, .head_dim = 1, .chunk_size = 1, .dtype = DType::kFloat32, .scale = 1.0f, .cu_seqlens = {}};
  const AttentionPolicy policy{.window = 1, .topk = 1};
  const partition::SequenceGrid grid(problem, policy);
  const StoredTensor queries(problem.dtype, 2, 1, 1, {1, 1});
  const StoredBlocks blocks(problem, grid, {key, 9}, {value, kNaN});
  Selection selection(2, 1, 1);
  selection.slots(1, 0)[0] = 0;
  Results results(problem, 2);
  results.out = {5, window_out};
  results.lse = {6, window_lse};
  attend_union(problem, grid, queries.view(), selection, {0, 2}, blocks.table(), results.out_view(), results.lse_view(),
               1);
  EXPECT_EQ(results.out[0], 5.0f);
  EXPECT_EQ(results.lse[0], 6.0f);
  return {results.out[1], results.lse[1]};
}

TEST(AttendUnion, a_key_with_the_window_s_mass_takes_half) {
  const auto [out, lse] = unite_two(1.0f, 0.0f, 0.0f, 3.0f);
  EXPECT_EQ(out, 2.0f);
  EXPECT_FLOAT_EQ(lse, std::log(2.0f));
}

// The window's mass is 3, the key's e^0 = 1.
TEST(AttendUnion, the_window_weighs_as_much_as_its_lse_says) {
  const auto [out, lse] = unite_two(5.0f, std::log(3.0f), 0.0f, 1.0f);
  EXPECT_NEAR(out, (3.0f * 5.0f + 1.0f) / 4.0f, 1e-6);
  EXPECT_NEAR(lse, std::log(4.0f), 1e-6);
}

TEST(AttendUnion, an_empty_window_leaves_the_keys_alone_even_when_its_result_is_not_a_number) {
  const auto [out, lse] = unite_two(kNaN, kMinusInfinity, 2.0f, 3.0f);
  EXPECT_EQ(out, 3.0f);
  EXPECT_EQ(lse, 2.0f);
}

// Two heads of one kv head, keys 0 and values 1, 2, 3 in chunks of one. At the last token head 0 has chosen chunk 0 and
// head 1 chunk 1; each counts with the own token.
TEST(AttendUnion, heads_of_a_group_may_choose_apart) {
  const AttentionProblem problem{
      .tokens = 3, .heads = 2, .head_dim = 1, .chunk_size = 1, .dtype = DType::kFloat32, .cu_seqlens = {}};
  const AttentionPolicy policy{.window = 1, .topk = 1, .choice = Choice::kHead};
  const partition::SequenceGrid grid(problem, policy);
  const StoredTensor queries(problem.dtype, 3, 2, 1, {1, 1, 1, 1, 1, 1});
  const StoredBlocks blocks(problem, grid, {0, 0, 0}, {1, 2, 3});
  Selection selection(3, 2, 1);
  selection.slots(2, 0)[0] = 0;
  selection.slots(2, 1)[0] = 1;
  Results results(problem, 3);
  results.out = {0, 0, 0, 0, 3, 3};
  results.lse = {0, 0, 0, 0, 0, 0};
  attend_union(problem, grid, queries.view(), selection, {0, 3}, blocks.table(), results.out_view(), results.lse_view(),
               1);
  EXPECT_EQ(results.out, (std::vector<float>{0, 0, 0, 0, 2.0f, 2.5f}));
  EXPECT_FLOAT_EQ(results.lse[4], std::log(2.0f));
  EXPECT_FLOAT_EQ(results.lse[5], std::log(2.0f));
}

TEST(AttendUnion, random_problems_match_fp64) {
  std::mt19937_64 random(21);
  for (int trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const UnionCase c(problem, random_chooser(random, problem), random());
    Results results = c.window;
    c.attend(results, c.all(), 1 + trial % 3);
    ASSERT_NO_FATAL_FAILURE(check_samples(c, results, 30, random, kBound, [&](std::int64_t row, std::int64_t head) {
      return attend_exactly(c, row, head, c.keys_of(row, head));
    }));
  }
}

TEST(AttendUnion, bits_depend_on_neither_range_threads_nor_instruction_set) {
  std::mt19937_64 random(22);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const UnionCase c(problem, random_chooser(random, problem), random());
    Results whole = c.window;
    c.attend(whole, c.all(), 1);
    ASSERT_NO_FATAL_FAILURE(check_ranges(problem, c.window, whole, trial % 2 == 0, random,
                                         [&](Results& parts, RowRange rows) { c.attend(parts, rows, 2); }));
  }
}

// A list of all heads, of a group or of one head: where all lists are alike, so are all bits.
TEST(AttendUnion, lists_of_one_head_give_the_bits_of_the_list_they_share) {
  const AttentionProblem problem{
      .tokens = 300, .heads = 8, .kv_heads = 2, .head_dim = 80, .chunk_size = 16, .cu_seqlens = {}};
  const UnionCase all(problem, {.window = 20, .topk = 4, .sinks = 3, .choice = Choice::kAll}, 23);
  Results want = all.window;
  all.attend(want, all.all(), 1);
  for (const std::int64_t choosers : {2, 8}) {
    Selection apart(300, choosers, 4);
    for (std::int64_t row = 0; row < 300; ++row) {
      for (std::int64_t chooser = 0; chooser < choosers; ++chooser) {
        std::ranges::copy(all.selection.slots(row, 0), apart.slots(row, chooser).begin());
      }
    }
    Results got = all.window;
    attend_union(problem, all.grid, all.queries.view(), apart, all.all(), all.blocks.table(), got.out_view(),
                 got.lse_view(), 2);
    EXPECT_TRUE(same_bits(got.out, want.out)) << choosers;
    EXPECT_TRUE(same_bits(got.lse, want.lse)) << choosers;
  }
}

TEST(AttendUnion, rows_without_a_chosen_chunk_and_rows_out_of_range_stay_as_they_are) {
  const AttentionProblem problem{.tokens = 200, .heads = 2, .head_dim = 16, .chunk_size = 16, .cu_seqlens = {}};
  const UnionCase c(problem, {.window = 32, .topk = 3}, 24);
  check_untouched_rows(c, 180);
}

}  // namespace
}  // namespace ringmark::kernels
