#include "kernels/log_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace ringmark::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_same_bits(const LogSum& a, const LogSum& b) {
  EXPECT_EQ(a.place, b.place);
  EXPECT_EQ(a.high, b.high);
  EXPECT_EQ(a.low, b.low);
}

LogSum sum_of(const std::vector<float>& scores) {
  LogSum sum;
  for (const float score : scores) sum.add(score);
  return sum;
}

double logsumexp(const std::vector<float>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - largest);
  return largest + std::log(sum);
}

std::vector<float> uniform_scores(std::size_t count, float low, float high, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> scores(count);
  for (float& score : scores) score = uniform(random);
  return scores;
}

TEST(LogSum, is_minus_infinity_when_empty) {
  EXPECT_TRUE(LogSum().empty());
  EXPECT_EQ(LogSum().value(), -kInfinity);
}

TEST(LogSum, takes_nothing_from_minus_infinity) {
  LogSum sum;
  sum.add(-kInfinity);
  EXPECT_TRUE(sum.empty());
  sum.add(3.0f);
  const LogSum before = sum;
  sum.add(-kInfinity);
  expect_same_bits(sum, before);
  sum.add(LogSum());
  expect_same_bits(sum, before);
}

// exp(0) = 1 * 2^0: place 1, whose high digit counts units of 2^0.
TEST(LogSum, by_hand_one_term) {
  LogSum sum;
  sum.add(0.0f);
  EXPECT_EQ(sum.place, 1);
  EXPECT_EQ(sum.high, 1.0);
  EXPECT_EQ(sum.low, 0.0);
  EXPECT_EQ(sum.value(), 0.0f);
}

// exp(ln 2) + exp(0) = 3 units.
TEST(LogSum, by_hand_three_terms) {
  LogSum sum;
  sum.add(std::log(2.0f));
  sum.add(0.0f);
  EXPECT_EQ(sum.place, 1);
  EXPECT_EQ(sum.high, 3.0);
  EXPECT_EQ(sum.low, 0.0);
  EXPECT_FLOAT_EQ(sum.value(), std::log(3.0f));
}

// exp(-32 ln 2) = 1 * 2^-32 has place 0 and is one high digit there; beside exp(0) it is one low digit.
TEST(LogSum, by_hand_a_larger_term_raises_the_place) {
  LogSum sum;
  sum.add(-22.18071f);
  EXPECT_EQ(sum.place, 0);
  EXPECT_EQ(sum.high, 1.0);
  EXPECT_EQ(sum.low, 0.0);
  sum.add(0.0f);
  EXPECT_EQ(sum.place, 1);
  EXPECT_EQ(sum.high, 1.0);
  EXPECT_EQ(sum.low, 1.0);
}

TEST(LogSum, bits_do_not_depend_on_the_order) {
  std::mt19937_64 random(1);
  for (const float range : {1.0f, 30.0f, 300.0f, 1e4f}) {
    std::vector<float> scores = uniform_scores(1000, -range, range, 2);
    const LogSum first = sum_of(scores);
    for (int i = 0; i < 10; ++i) {
      std::shuffle(scores.begin(), scores.end(), random);
      expect_same_bits(sum_of(scores), first);
    }
    std::sort(scores.begin(), scores.end());
    expect_same_bits(sum_of(scores), first);
    std::reverse(scores.begin(), scores.end());
    expect_same_bits(sum_of(scores), first);
  }
}

TEST(LogSum, bits_do_not_depend_on_the_partition) {
  std::mt19937_64 random(3);
  for (const float range : {1.0f, 50.0f, 1e4f}) {
    const std::vector<float> scores = uniform_scores(997, -range, range, 4);
    const LogSum whole = sum_of(scores);
    for (std::size_t parts = 1; parts <= 9; ++parts) {
      std::vector<LogSum> sums(parts);
      for (const float score : scores) sums[random() % parts].add(score);
      std::shuffle(sums.begin(), sums.end(), random);
      LogSum merged;
      for (const LogSum& part : sums) merged.add(part);
      expect_same_bits(merged, whole);
    }
  }
}

TEST(LogSum, agrees_with_logsumexp_in_double_precision) {
  for (const float center : {-1e4f, -300.0f, 0.0f, 300.0f, 1e4f}) {
    for (const float range : {0.0f, 1.0f, 20.0f, 2000.0f}) {
      const std::vector<float> scores = uniform_scores(500, center - range, center + range + 1e-3f, 5);
      const double expected = logsumexp(scores);
      EXPECT_NEAR(sum_of(scores).value(), expected, 1e-6 * std::max(1.0, std::fabs(expected)))
          << "center " << center << ", range " << range;
    }
  }
}

TEST(LogSum, of_equal_scores_is_the_score_plus_the_logarithm_of_their_number) {
  for (const std::int64_t count : {1, 2, 3, 64, 1000, 100000}) {
    for (const float score : {0.0f, 5.0f, -17.0f}) {
      LogSum sum;
      for (std::int64_t i = 0; i < count; ++i) sum.add(score);
      EXPECT_NEAR(sum.value(), score + std::log(static_cast<double>(count)), 2e-6);
    }
  }
}

TEST(LogSum, keeps_the_largest_term_beside_a_huge_spread) {
  for (const float largest : {-1e8f, -1e4f, 0.0f, 1e4f, 1e8f}) {
    const LogSum sum = sum_of({largest - 3e8f, largest, largest - 100.0f});
    EXPECT_NEAR(sum.value(), largest, 1e-6 * std::max(1.0f, std::fabs(largest)));
    expect_same_bits(sum, sum_of({largest, largest - 100.0f, largest - 3e8f}));
  }
}

// An overflowed dot product is infinite or NaN; sums stay numbers and independent of the order.
TEST(LogSum, stays_a_number_beside_scores_that_are_none) {
  for (const float huge : {1e12f, 1e30f, 3e38f, kInfinity}) {
    const LogSum up = sum_of({1.0f, huge, -2.0f}), down = sum_of({huge, -2.0f, 1.0f});
    expect_same_bits(up, down);
    const float expected = std::min(huge, LogSum::kLargestScore);
    EXPECT_NEAR(up.value() / expected, 1.0f, 1e-6f) << huge;
    expect_same_bits(sum_of({1.0f, -huge, -2.0f}), sum_of({-2.0f, 1.0f}));
  }
  expect_same_bits(sum_of({1.0f, std::numeric_limits<float>::quiet_NaN()}), sum_of({1.0f}));
}

}  // namespace
}  // namespace ringmark::kernels
