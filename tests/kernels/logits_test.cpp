// Logits that are more than scaled products: the soft cap, ALiBi, and sink logits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/absorb_sinks.h"
#include "kernels/attend_window.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/isa.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/exact_checks.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;

std::vector<float> capped(std::vector<float> logits, float cap, const cpu::TileKernels& kernels) {
  const std::size_t count = logits.size();
  logits.resize(static_cast<std::size_t>(cpu::round_up(static_cast<std::int64_t>(count), cpu::kPanelWidth)));
  kernels.cap_scores(logits.data(), static_cast<std::int64_t>(logits.size()), cap);
  logits.resize(count);
  return logits;
}

// Top and sum of one row of one component, whose query is 0, over two keys so far away.
struct AlibiKeys {
  AlibiKeys(std::int64_t distance, float slope) {
    const std::vector<float> query(1, 0.0f),
        keys(static_cast<std::size_t>(cpu::panel_depth(1) * cpu::kPanelWidth), 1.0f);
    const std::vector<float> values(static_cast<std::size_t>(2 * cpu::kPanelWidth), 1.0f);
    std::vector<float> out(static_cast<std::size_t>(cpu::kPanelWidth)),
        scores(static_cast<std::size_t>(cpu::score_floats(2)));
    const std::int32_t row = 0, first = 0, end = 2;
    cpu::tile_kernels().attend_online({keys.data(), values.data(), 2, 1, true}, {&row, &first, &end, &distance, 1},
                                      {query.data(), out.data(), cpu::kPanelWidth, &top, &sum}, {0.0f, &slope},
                                      scores.data());
  }

  float top = kMinusInfinity;
  float sum = 0.0f;
};

// By hand, cap 30: nothing of nothing; 3 -> 30 tanh(0.1) = 2.99004; 300 -> 30 tanh(10), the cap to the last digit.
TEST(LogitCap, worked_by_hand) {
  const std::vector<float> got = capped({0.0f, 3.0f, 300.0f, -3.0f}, 30.0f, cpu::tile_kernels());
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_NEAR(got[1], 2.9900399, 1e-6);
  EXPECT_EQ(got[2], 30.0f);
  EXPECT_EQ(got[3], -got[1]);
}

TEST(LogitCap, relative_error_stays_below_1e_6_for_any_logit_and_cap) {
  double worst = 0.0;
  for (const float cap : {1e-30f, 0.01f, 1.0f, 20.0f, 30.0f, 50.0f, 1e6f, 1e30f}) {
    std::vector<float> logits;
    for (float ratio = 1e-7f; ratio < 100.0f; ratio *= 1.0007f) {
      logits.push_back(ratio * cap);
      logits.push_back(-ratio * cap);
    }
    for (const float size : {1e-38f, 1e-20f, 1e-3f, 1e20f, 3e38f}) logits.push_back(size);
    const std::vector<float> got = capped(logits, cap, cpu::tile_kernels());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double want = double{cap} * std::tanh(double{logits[i]} / double{cap});
      worst = std::max(worst, std::fabs((double{got[i]} - want) / want));
      ASSERT_LE(std::fabs(got[i]), cap) << logits[i] << " capped at " << cap;
    }
  }
  EXPECT_LT(worst, 1e-6);
}

TEST(LogitCap, infinities_reach_the_cap_and_a_nan_stays_one) {
  const std::vector<float> got = capped({-kMinusInfinity, kMinusInfinity, kNaN}, 5.0f, cpu::tile_kernels());
  EXPECT_EQ(got[0], 5.0f);
  EXPECT_EQ(got[1], -5.0f);
  EXPECT_TRUE(std::isnan(got[2]));
}

TEST(LogitCap, bits_do_not_depend_on_the_instruction_set) {
  if (cpu::active_isa() != cpu::Isa::kAvx512) GTEST_SKIP() << "one instruction set here";
  std::mt19937_64 random(3);
  std::vector<float> logits = normal_floats(random, 4096);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] *= std::pow(10.0f, static_cast<float>(i % 5) - 2.0f);
  EXPECT_TRUE(same_bits(capped(logits, 3.0f, cpu::kTileKernelsAvx2), capped(logits, 3.0f, cpu::kTileKernelsAvx512)));
}

// All queries 0, so that the bias alone makes the logits. H = 2: slopes 2^-4 and 2^-8. Row i of head h has weights
// e^(-m (i - j)), so out = sum v_j e^(-m (i-j)) / Z, lse = ln Z.
TEST(Alibi, worked_by_hand_with_two_heads) {
  AttentionProblem problem{.tokens = 3, .heads = 2, .head_dim = 1, .chunk_size = 2, .dtype = DType::kFloat32};
  problem.alibi = true;
  const partition::SequenceGrid grid(problem, {.window = 3, .topk = 0});
  const StoredTensor queries(problem.dtype, 3, 2, 1, std::vector<float>(6, 0.0f));
  const StoredBlocks blocks(problem, grid, {1, 2, 3}, {1, 0, 0});
  const std::vector<TokenId> tokens = {TokenId(0), TokenId(1), TokenId(2)};
  Results got(problem, 3);
  attend_window(problem, grid, queries.view(), tokens, {0, 3}, blocks.table(), got.out_view(), got.lse_view(), 1);
  const double a = std::exp(-0.0625), b = std::exp(-0.00390625);
  const std::array<double, 6> sums = {1, 1, 1 + a, 1 + b, 1 + a + a * a, 1 + b + b * b};
  const std::array<double, 6> first = {1, 1, a, b, a * a, b * b};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(got.lse[i], std::log(sums[i]), 1e-6) << i;
    EXPECT_NEAR(got.out[i], first[i] / sums[i], 1e-6) << i;
  }
}

// Two keys of a chunk, far from the row: their biases differ by one slope or, where fp32 has no odd numbers left, by
// the rounding of two whole numbers, never by more. Below 2^24 nothing is lost.
TEST(Alibi, distances_are_whole_numbers_rounded_once) {
  for (const std::int64_t distance : {std::int64_t{5}, (std::int64_t{1} << 24) - 1, (std::int64_t{1} << 24) + 3,
                                      (std::int64_t{1} << 31) + 129, (std::int64_t{1} << 40) - 1}) {
    const float slope = 0.5f;
    AlibiKeys keys(distance, slope);
    float top = std::max(alibi_bias(slope, distance), alibi_bias(slope, distance - 1));
    EXPECT_EQ(keys.top, top) << distance;
    const double weight = std::exp(double{alibi_bias(slope, distance)} - double{top});
    EXPECT_NEAR(keys.sum, weight + std::exp(double{alibi_bias(slope, distance - 1)} - double{top}), 1e-6) << distance;
  }
}

// One logit more. A lone key of logit 0 beside softmax-zero: half of it, ln 2. A row without keys: nothing, and lse is
// the sink. A sink of ln 3 above two keys of logit 0: 2 / (2 + 3) of their mean, ln 5.
TEST(SinkLogits, worked_by_hand) {
  std::vector<float> out = {4, 0, 7};
  std::vector<float> lse = {0, kMinusInfinity, std::log(2.0f)};
  const std::vector<float> sinks = {0.0f, 1.5f, std::log(3.0f)};
  absorb_sinks(sinks, {out.data(), {1, 3, 1}}, {lse.data(), {1, 3}}, 1);
  EXPECT_EQ(out[0], 2.0f);
  EXPECT_NEAR(lse[0], std::log(2.0), 1e-7);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(lse[1], 1.5f);
  EXPECT_NEAR(out[2], 7.0 * 0.4, 1e-6);
  EXPECT_NEAR(lse[2], std::log(5.0), 1e-6);
}

TEST(SinkLogits, none_and_minus_infinity_change_no_bit_and_large_ones_take_all) {
  const std::vector<float> before_out = {1.25f, -3.0f, 0.0f}, before_lse = {2.0f, -80.0f, kMinusInfinity};
  std::vector<float> out = before_out, lse = before_lse;
  absorb_sinks({}, {out.data(), {1, 3, 1}}, {lse.data(), {1, 3}}, 1);
  absorb_sinks(std::vector<float>(3, kMinusInfinity), {out.data(), {1, 3, 1}}, {lse.data(), {1, 3}}, 2);
  EXPECT_TRUE(same_bits(out, before_out));
  EXPECT_TRUE(same_bits(lse, before_lse));
  absorb_sinks(std::vector<float>(3, 3e38f), {out.data(), {1, 3, 1}}, {lse.data(), {1, 3}}, 1);
  EXPECT_EQ(out, (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(lse, (std::vector<float>{3e38f, 3e38f, 3e38f}));
}

// The reference by hand: cap 1, keys 0 and 2 for q = 1, window of both: logits 0 and tanh 2; then a sink of 0.
TEST(ReferenceLogits, worked_by_hand) {
  reference::Layer layer;
  layer.problem = {.tokens = 2, .head_dim = 1, .chunk_size = 4, .scale = 1.0f};
  layer.policy = {.window = 4, .topk = 0};
  layer.q = layer.retrieval_q = {1, 1};
  layer.k = {0, 2};
  layer.v = {0, 1};
  layer.problem.logit_cap = 1.0f;
  const std::vector<TokenId> last = {TokenId(1)};
  const double weight = std::exp(std::tanh(2.0));
  reference::Result got = reference::attend(layer, last, 1);
  EXPECT_NEAR(got.out[0], weight / (1.0 + weight), 1e-12);
  layer.problem.sink_logits = {0.0f};
  got = reference::attend(layer, last, 1);
  EXPECT_NEAR(got.out[0], weight / (2.0 + weight), 1e-12);
  EXPECT_NEAR(got.lse[0], std::log(2.0 + weight), 1e-12);
  EXPECT_NEAR(got.lse_window[0], std::log(1.0 + weight), 1e-12);
  // One head: slope 2^-8. The older key loses it.
  layer.problem.sink_logits.clear();
  layer.problem.alibi = true;
  got = reference::attend(layer, last, 1);
  EXPECT_NEAR(got.lse[0], std::log(std::exp(-0.00390625) + weight), 1e-12);
}

TEST(Logits, random_problems_match_fp64) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 120; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    AttentionProblem problem = random_problem(random);
    problem.logit_cap = pick<float>(random, {0.0f, 0.5f, 5.0f, 50.0f});
    problem.alibi = trial % 2 == 0;
    problem.scale *= pick<float>(random, {1.0f, 4.0f});
    const AttentionCase c(problem, random_policy(random, problem), random());
    Results got(problem, problem.tokens);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), got.out_view(),
                  got.lse_view(), 1 + trial % 3);
    ASSERT_NO_FATAL_FAILURE(check_samples(c, got, 20, random, kBound, [&](std::int64_t row, std::int64_t head) {
      return attend_exactly(c, row, head, window_keys(c.grid, TokenId(row)));
    }));
  }
}

TEST(Logits, bits_depend_on_neither_range_threads_nor_instruction_set) {
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    AttentionProblem problem = random_problem(random);
    problem.logit_cap = pick<float>(random, {0.0f, 2.0f});
    problem.alibi = trial % 2 == 0;
    AttentionPolicy policy = random_policy(random, problem);
    policy.topk = 0;
    policy.edge = WindowEdge::kToken;
    policy.window = pick<std::int64_t>(random, {1, 15, 64, 130});
    const AttentionCase c(problem, policy, random());
    Results whole(problem, problem.tokens);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), whole.out_view(),
                  whole.lse_view(), 1);
    ASSERT_NO_FATAL_FAILURE(check_ranges(problem, Results(problem, problem.tokens), whole, trial % 4 < 2, random,
                                         [&](Results& parts, RowRange rows) {
                                           attend_window(problem, c.grid, c.queries.view(), c.tokens, rows,
                                                         c.blocks.table(), parts.out_view(), parts.lse_view(), 2);
                                         }));
  }
}

}  // namespace
}  // namespace ringmark::kernels
