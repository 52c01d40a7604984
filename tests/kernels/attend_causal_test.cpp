#include "kernels/attend_causal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attend_window.h"
#include "kernels/cpu/isa.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;

AttentionPolicy whole_window(const AttentionProblem& problem) { return {problem.tokens, 0, 0, Scorer::kNone}; }

std::vector<ChunkId> all_chunks(const partition::SequenceGrid& grid) {
  std::vector<ChunkId> chunks;
  for (std::int64_t c = 0; c < grid.chunk_count(); ++c) chunks.emplace_back(c);
  return chunks;
}

// Attends to the lists of chunks one after the other.
Results attend_in_turn(const AttentionCase& c, const std::vector<std::vector<ChunkId>>& lists, int threads = 1) {
  Results results(c.problem, c.problem.tokens);
  std::vector<float> sums(results.lse.size(), kNaN);
  const OpenSoftmax softmax{results.out_view(), results.lse_view(), {sums.data(), {c.problem.tokens, c.problem.heads}}};
  const std::vector<HeadGroup> groups = head_groups(c.problem);
  start_softmax(softmax);
  for (const std::vector<ChunkId>& chunks : lists) {
    attend_causal({c.problem, c.grid, c.queries.view(), c.tokens, groups}, c.all(), chunks, c.blocks.table(), softmax,
                  threads);
  }
  close_softmax(softmax);
  return results;
}

TEST(AttendCausal, chunks_in_order_give_the_bits_of_the_whole_window) {
  std::mt19937_64 random(1);
  const cpu::Isa native = cpu::active_isa();
  for (int trial = 0; trial < 60; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, whole_window(problem), random());
    Results window(problem, problem.tokens);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), window.out_view(),
                  window.lse_view(), 1);
    const std::vector<ChunkId> chunks = all_chunks(c.grid);
    const auto cut = static_cast<std::ptrdiff_t>(random() % (chunks.size() + 1));
    if (trial % 2 == 0) cpu::force_isa(cpu::Isa::kAvx2);
    const Results causal = attend_in_turn(
        c, {{chunks.begin(), chunks.begin() + cut}, {chunks.begin() + cut, chunks.end()}}, 1 + trial % 3);
    cpu::force_isa(native);
    ASSERT_TRUE(same_bits(causal.out, window.out)) << "trial " << trial;
    ASSERT_TRUE(same_bits(causal.lse, window.lse)) << "trial " << trial;
  }
}

TEST(AttendCausal, any_order_and_any_subset_match_fp64) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, whole_window(problem), random());
    std::vector<std::vector<ChunkId>> lists(4);  // what falls into the last is not attended to
    std::vector<bool> given(static_cast<std::size_t>(c.grid.chunk_count()));
    for (const ChunkId chunk : all_chunks(c.grid)) {
      const auto list = static_cast<std::size_t>(random() % 4);
      lists[list].push_back(chunk);
      given[static_cast<std::size_t>(chunk.value())] = list < 3;
    }
    lists.pop_back();
    const Results results = attend_in_turn(c, lists, 2);
    for (int sample = 0; sample < 20; ++sample) {
      const auto row = std::uniform_int_distribution<std::int64_t>(0, problem.tokens - 1)(random);
      const auto head = std::uniform_int_distribution<std::int64_t>(0, problem.heads - 1)(random);
      std::vector<TokenId> keys = window_keys(c.grid, TokenId(row));
      std::erase_if(keys, [&](TokenId key) { return !given[static_cast<std::size_t>(c.grid.chunk_of(key).value())]; });
      const ExactRow exact = attend_exactly(c, row, head, keys);
      const auto at = static_cast<std::size_t>(row * problem.heads + head);
      if (keys.empty()) {
        ASSERT_EQ(results.lse[at], kMinusInfinity);
      } else {
        ASSERT_NEAR(results.lse[at], exact.lse, kBound) << "trial " << trial << " row " << row;
      }
      for (std::size_t k = 0; k < exact.out.size(); ++k) {
        ASSERT_NEAR(results.out[at * exact.out.size() + k], exact.out[k], kBound)
            << "trial " << trial << " row " << row;
      }
    }
  }
}

// A rank that has heads 1 to 3 of six, whose kv heads are 0 (two of its three query heads) and 1 (one of them).
TEST(AttendCausal, parts_of_groups_are_the_rows_of_the_whole) {
  AttentionProblem problem{
      .tokens = 150, .heads = 6, .kv_heads = 2, .head_dim = 48, .chunk_size = 16, .cu_seqlens = {}};
  const AttentionCase c(problem, whole_window(problem), 3);
  const Results whole = attend_in_turn(c, {all_chunks(c.grid)});
  std::vector<float> some;
  for (std::int64_t row = 0; row < 150; ++row) {
    for (std::int64_t head = 1; head < 4; ++head) {
      const std::vector<float> query = c.queries.row(row, head);
      some.insert(some.end(), query.begin(), query.end());
    }
  }
  const StoredTensor queries(problem.dtype, 150, 3, 48, some);
  const std::vector<HeadGroup> groups = {{0, 0, 2}, {1, 2, 1}};
  std::vector<float> out(150 * 3 * 48, kNaN), lse(150 * 3, kNaN), sum(150 * 3, kNaN);
  const OpenSoftmax softmax{{out.data(), {150, 3, 48}}, {lse.data(), {150, 3}}, {sum.data(), {150, 3}}};
  start_softmax(softmax);
  attend_causal({problem, c.grid, queries.view(), c.tokens, groups}, {0, 150}, all_chunks(c.grid), c.blocks.table(),
                softmax, 2);
  close_softmax(softmax);
  for (std::size_t row = 0; row < 150; ++row) {
    for (std::size_t head = 0; head < 3; ++head) {
      ASSERT_EQ(lse[row * 3 + head], whole.lse[row * 6 + head + 1]);
      for (std::size_t k = 0; k < 48; ++k) {
        ASSERT_EQ(out[(row * 3 + head) * 48 + k], whole.out[(row * 6 + head + 1) * 48 + k]);
      }
    }
  }
}

TEST(AttendCausal, a_softmax_that_was_given_nothing_is_empty) {
  AttentionProblem problem{.tokens = 20, .head_dim = 8, .chunk_size = 16, .cu_seqlens = {}};
  const AttentionCase c(problem, whole_window(problem), 4);
  const Results results = attend_in_turn(c, {{}, {ChunkId(1)}});
  for (std::size_t row = 0; row < 16; ++row) {  // before the chunk
    EXPECT_EQ(results.lse[row], kMinusInfinity);
    for (std::size_t k = 0; k < 8; ++k) EXPECT_EQ(results.out[row * 8 + k], 0.0f);
  }
  EXPECT_TRUE(std::isfinite(results.lse[16]));
}

}  // namespace
}  // namespace ringmark::kernels
