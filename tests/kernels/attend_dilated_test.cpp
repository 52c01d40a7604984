#include "kernels/attend_dilated.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "kernels/attend_window.h"
#include "kernels/cpu/isa.h"
#include "kernels/merge_partials.h"
#include "kernels/positions/alibi.h"
#include "kernels/reference/dilated.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;

AttentionPolicy whole_window(const AttentionProblem& problem) { return {problem.tokens, 0, 0, Scorer::kNone}; }

// One pair; the stretches come in two calls, `cut` of them in the first.
Results attend_pair(const AttentionCase& c, const Dilation& dilation, std::size_t cut, int threads) {
  Results results(c.problem, c.problem.tokens);
  std::vector<float> sums(results.lse.size(), kNaN);
  const OpenSoftmax softmax{results.out_view(), results.lse_view(), {sums.data(), {c.problem.tokens, c.problem.heads}}};
  const std::vector<HeadGroup> groups = head_groups(c.problem);
  const CausalQueries queries{c.problem, c.grid, c.queries.view(), c.tokens, groups};
  const std::vector<Range<TokenId>> stretches = stretches_of(c.grid, dilation);
  const std::span<const Range<TokenId>> all(stretches);
  cut = std::min(cut, all.size());
  start_softmax(softmax);
  attend_dilated(queries, dilation, all.first(cut), c.blocks.table(), softmax, threads);
  attend_dilated(queries, dilation, all.subspan(cut), c.blocks.table(), softmax, threads);
  close_softmax(softmax);
  return results;
}

Results attend_all(const AttentionCase& c, const std::vector<Dilation>& dilations, std::size_t cut = 0,
                   int threads = 1) {
  Results merged = attend_pair(c, dilations.front(), cut, threads);
  for (std::size_t n = 1; n < dilations.size(); ++n) {
    const Results more = attend_pair(c, dilations[n], cut, threads);
    merge_partials(merged.out_view(), merged.lse_view(), {more.out.data(), more.shape},
                   {more.lse.data(), {more.shape[0], more.shape[1]}});
  }
  return merged;
}

// One component a head, zero queries: a row's output is the mean of the values that it sees, its lse the log of their
// count. The value of a token is its id plus one.
struct Counted {
  std::vector<float> mean, keys;  // by row and head
};
Counted count(AttentionProblem problem, const std::vector<Dilation>& dilations) {
  problem.head_dim = 1;
  problem.dtype = DType::kFloat32;
  AttentionCase c(problem, whole_window(problem), 1);
  std::vector<float> ids;
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    ids.insert(ids.end(), static_cast<std::size_t>(problem.kv_heads), static_cast<float>(token + 1));
  }
  const StoredTensor zero(problem.dtype, problem.tokens, problem.heads, 1,
                          std::vector<float>(static_cast<std::size_t>(problem.tokens * problem.heads), 0.0f));
  const StoredBlocks blocks(problem, c.grid, ids, ids);
  Counted counted;
  Results merged(problem, problem.tokens);
  for (std::size_t n = 0; n < dilations.size(); ++n) {
    Results results(problem, problem.tokens);
    std::vector<float> sums(results.lse.size());
    const OpenSoftmax softmax{results.out_view(), results.lse_view(), {sums.data(), {problem.tokens, problem.heads}}};
    const std::vector<HeadGroup> groups = head_groups(problem);
    start_softmax(softmax);
    attend_dilated({problem, c.grid, zero.view(), c.tokens, groups}, dilations[n], stretches_of(c.grid, dilations[n]),
                   blocks.table(), softmax, 1);
    close_softmax(softmax);
    if (n == 0) merged = results;
    if (n > 0) {
      merge_partials(merged.out_view(), merged.lse_view(), {results.out.data(), results.shape},
                     {results.lse.data(), {results.shape[0], results.shape[1]}});
    }
  }
  counted.mean = merged.out;
  for (const float lse : merged.lse) counted.keys.push_back(std::round(1000.0f * std::exp(lse)) / 1000.0f);
  return counted;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5f) << "at " << i;
}

TEST(AttendDilated, segments_begin_anew_by_hand) {
  AttentionProblem problem{.tokens = 7, .chunk_size = 2};
  const Counted counted = count(problem, {{3, 1}});
  expect_near(counted.mean, {1, 1.5, 2, 4, 4.5, 5, 7});
  expect_near(counted.keys, {1, 2, 3, 1, 2, 3, 1});
}

// Rate 2 in segments of 5: head 0 has the places 0, 2 and 4, head 1 the places 1 and 3.
TEST(AttendDilated, heads_share_the_places_by_hand) {
  AttentionProblem problem{.tokens = 8, .heads = 2, .chunk_size = 4};
  const Counted counted = count(problem, {{5, 2}});
  expect_near(counted.mean, {1, 0, 0, 2, 2, 0, 0, 3, 3, 0, 6, 0, 0, 7, 7, 0});
  expect_near(counted.keys, {1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 1, 0, 0, 1, 2, 0});
}

// Row 2 sees token 2 alone and tokens 0 to 2: (3 + 1 + 2 + 3) / 4.
TEST(AttendDilated, pairs_count_a_key_each_by_hand) {
  AttentionProblem problem{.tokens = 4, .chunk_size = 4};
  const Counted counted = count(problem, {{2, 1}, {4, 1}});
  expect_near(counted.mean, {1, 1.5, 9.0f / 4, (7.0f + 10.0f) / 6});
  expect_near(counted.keys, {2, 4, 4, 6});
}

// Documents of 5 and 3 tokens in chunks of 2, whose second slot is a landmark: keys are the tokens 0, 2, 4 and 5, 7.
// Rate 2 gives them all to head 0; head 1 has the landmark slots, and no key.
TEST(AttendDilated, documents_and_landmark_slots_by_hand) {
  AttentionProblem problem{
      .tokens = 8, .heads = 2, .chunk_size = 2, .landmark_slots = true, .cu_seqlens = {0, 5, 5, 8}};
  const Counted counted = count(problem, {{4, 2}});
  expect_near(counted.mean, {1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 6, 0, 0, 0, 7, 0});
  expect_near(counted.keys, {1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0, 0, 0, 2, 0});
}

// Row 4 is 4, 2 and 0 tokens from its keys, not 2, 1 and 0.
TEST(AttendDilated, alibi_counts_tokens_by_hand) {
  AttentionProblem problem{
      .tokens = 5, .head_dim = 1, .chunk_size = 4, .dtype = DType::kFloat32, .cu_seqlens = {}, .alibi = true};
  const AttentionCase c(problem, whole_window(problem), 1);
  const Results got = attend_pair(c, {5, 2}, 0, 1);
  const double slope = alibi_slopes(1)[0];
  for (const std::int64_t row : {0, 2, 4}) {
    double sum = 0.0, mixed = 0.0;
    for (std::int64_t key = 0; key <= row; key += 2) {
      const double logit = double{problem.scale} * double{c.queries.row(row, 0)[0]} * double{c.keys.row(key, 0)[0]};
      const double weight = std::exp(logit - slope * static_cast<double>(row - key));
      sum += weight;
      mixed += weight * double{c.values.row(key, 0)[0]};
    }
    EXPECT_NEAR(got.lse[static_cast<std::size_t>(row)], std::log(sum), 1e-6);
    EXPECT_NEAR(got.out[static_cast<std::size_t>(row)], mixed / sum, 1e-6);
  }
}

TEST(AttendDilated, random_layers_match_fp64) {
  std::mt19937_64 random(3);
  const cpu::Isa native = cpu::active_isa();
  for (int trial = 0; trial < 50; ++trial) {
    AttentionProblem problem = random_problem(random);
    problem.logit_cap = pick<float>(random, {0.0f, 0.0f, 2.0f, 30.0f});
    problem.alibi = random() % 3 == 0;
    const AttentionCase c(problem, whole_window(problem), random());
    std::vector<Dilation> dilations;
    for (std::uint64_t pairs = 1 + random() % 3; pairs > 0; --pairs) {
      const std::int64_t segment = pick<std::int64_t>(random, {1, 7, 64, 100, 256, 1 << 20});
      dilations.push_back({segment, std::min(segment, pick<std::int64_t>(random, {1, 2, 3, 8, 80}))});
    }
    const Results got = attend_all(c, dilations, random() % 8, 1 + trial % 3);
    const reference::Layer layer{problem,
                                 c.policy,
                                 reference::widen(c.queries.view()),
                                 {},
                                 reference::widen(c.keys.view()),
                                 reference::widen(c.values.view())};
    const auto want = reference::attend_dilated(layer, dilations, c.tokens);
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      if (std::isinf(want.lse[i])) {
        ASSERT_EQ(got.lse[i], kMinusInfinity) << "trial " << trial << " at " << i;
      } else {
        ASSERT_NEAR(got.lse[i], want.lse[i], kBound) << "trial " << trial << " at " << i;
      }
    }
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], want.out[i], kBound) << "trial " << trial << " at " << i;
    }
    cpu::force_isa(cpu::Isa::kAvx2);
    const Results otherwise = attend_all(c, dilations, random() % 8, 2);
    cpu::force_isa(native);
    ASSERT_TRUE(same_bits(got.out, otherwise.out)) << "trial " << trial;
    ASSERT_TRUE(same_bits(got.lse, otherwise.lse)) << "trial " << trial;
  }
}

// Stretches of 64 tokens are then the chunks.
TEST(AttendDilated, one_segment_at_rate_1_is_causal_attention_bit_for_bit) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 20; ++trial) {
    AttentionProblem problem = random_problem(random);
    problem.chunk_size = kStretchKeys;
    problem.landmark_slots = false;
    const AttentionCase c(problem, whole_window(problem), random());
    Results window(problem, problem.tokens);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), window.out_view(),
                  window.lse_view(), 1);
    const Results dilated = attend_all(c, {{problem.tokens, 1}});
    ASSERT_TRUE(same_bits(dilated.out, window.out)) << "trial " << trial;
    ASSERT_TRUE(same_bits(dilated.lse, window.lse)) << "trial " << trial;
  }
}

TEST(Dilation, refuses_a_rate_above_the_segment) {
  const auto text_of = [](const std::vector<Dilation>& dilations) {
    try {
      validate(dilations);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("fine");
  };
  EXPECT_EQ(text_of({{4, 4}, {8, 1}}), "fine");
  EXPECT_NE(text_of({{4, 1}, {4, 5}}).find("dilation = 4:5"), std::string::npos);
  EXPECT_NE(text_of({{0, 1}}).find("dilation = 0:1"), std::string::npos);
  EXPECT_NE(text_of({}).find("at least one"), std::string::npos);
}

TEST(Dilation, stretches_cover_the_sequence_once) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 50; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const partition::SequenceGrid grid(problem, whole_window(problem));
    const std::int64_t segment = pick<std::int64_t>(random, {1, 7, 64, 100, std::int64_t{1} << 40});
    const Dilation dilation{segment, std::min(segment, pick<std::int64_t>(random, {1, 2, 3, 50}))};
    TokenId next(0);
    for (const Range<TokenId>& stretch : stretches_of(grid, dilation)) {
      ASSERT_EQ(stretch.begin, next);
      ASSERT_FALSE(stretch.empty());
      const Range<TokenId> of_first = segment_of(grid, dilation, stretch.begin);
      ASSERT_EQ(of_first, segment_of(grid, dilation, stretch.end - 1));
      ASSERT_EQ((stretch.begin - of_first.begin) % dilation.rate, 0);
      ASSERT_LE((stretch.size() - 1) / dilation.rate + 1, kStretchKeys);
      next = stretch.end;
    }
    ASSERT_EQ(next, TokenId(problem.tokens));
  }
}

}  // namespace
}  // namespace ringmark::kernels
