#include "kernels/merge_partials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace ringmark::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// One row and one head.
struct Partial {
  std::vector<float> out;
  float lse;

  Partial& merge(const Partial& other) {
    const auto dims = static_cast<std::int64_t>(out.size());
    merge_partials({out.data(), {1, 1, dims}}, {&lse, {1, 1}}, {other.out.data(), {1, 1, dims}}, {&other.lse, {1, 1}});
    return *this;
  }
};

// NaN and the sign of zero count.
std::vector<std::uint32_t> bits_of(const Partial& partial) {
  std::vector<std::uint32_t> bits = {std::bit_cast<std::uint32_t>(partial.lse)};
  for (const float x : partial.out) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

void expect_same_bits(const Partial& a, const Partial& b) { EXPECT_EQ(bits_of(a), bits_of(b)); }

TEST(MergePartials, equal_masses_meet_in_the_middle) {
  Partial a{{1.0f}, 0.0f};
  a.merge({{3.0f}, 0.0f});
  EXPECT_EQ(a.out[0], 2.0f);
  EXPECT_FLOAT_EQ(a.lse, std::log(2.0f));
}

TEST(MergePartials, three_times_the_mass_weighs_three_times) {
  Partial a{{1.0f}, 10.0f};
  a.merge({{5.0f}, 10.0f + std::log(3.0f)});
  EXPECT_NEAR(a.out[0], 4.0f, 1e-6);
  EXPECT_NEAR(a.lse, 10.0f + std::log(4.0f), 1e-6);
}

TEST(MergePartials, a_mass_e_to_the_300_smaller_changes_nothing) {
  Partial a{{1.0f}, 200.0f};
  a.merge({{5.0f}, -100.0f});
  EXPECT_EQ(a.out[0], 1.0f);
  EXPECT_EQ(a.lse, 200.0f);
}

// Public bug 1: -inf - -inf. Public bug 3: the empty side's output was never written and its stale NaN got through.
TEST(MergePartials, an_empty_side_is_neutral_bit_for_bit_in_either_order) {
  const Partial full{{0.1f, -2.5f, -0.0f}, -3.0f};
  const Partial empty{{kNaN, kNaN, kNaN}, kEmpty};
  std::feclearexcept(FE_ALL_EXCEPT);
  expect_same_bits(Partial(full).merge(empty), full);
  expect_same_bits(Partial(empty).merge(full), full);
  EXPECT_FALSE(std::fetestexcept(FE_INVALID | FE_DIVBYZERO));
}

// Public bugs 1 and 2: two empty sides gave NaN.
TEST(MergePartials, two_empty_sides_stay_zero_and_minus_infinity) {
  const Partial empty{{kNaN, kNaN}, kEmpty};
  std::feclearexcept(FE_ALL_EXCEPT);
  expect_same_bits(Partial(empty).merge(empty), {{0.0f, 0.0f}, kEmpty});
  EXPECT_FALSE(std::fetestexcept(FE_INVALID | FE_DIVBYZERO));
}

// Scores and values of one query over many keys.
struct Keys {
  std::vector<double> scores;
  std::vector<double> values;

  struct Exact {
    double out, lse;
  };
  Exact attend(std::size_t begin, std::size_t end) const {
    double sum = 0.0;
    double out = 0.0;
    for (std::size_t j = begin; j < end; ++j) {
      sum += std::exp(scores[j]);
      out += std::exp(scores[j]) * values[j];
    }
    return {sum > 0.0 ? out / sum : 0.0, std::log(sum)};
  }
  Partial partial(std::size_t begin, std::size_t end) const {
    const Exact exact = attend(begin, end);
    return {{static_cast<float>(exact.out)}, static_cast<float>(exact.lse)};
  }
};

Keys random_keys(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Keys keys;
  for (std::size_t j = 0; j < count; ++j) {
    keys.scores.push_back(2.0 * normal(random));
    keys.values.push_back(normal(random));
  }
  return keys;
}

// Public bug 6: the error grew with the number of partial results. Here a merge adds no more than the rounding of the
// lse it stores, half a unit in the last place.
TEST(MergePartials, the_error_stays_under_one_bound_up_to_16_ranks) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Keys keys = random_keys(seed, 4096);
    const Keys::Exact exact = keys.attend(0, 4096);
    for (const std::size_t ranks : {1u, 2u, 4u, 8u, 16u}) {
      const std::size_t share = 4096 / ranks;
      Partial sum = keys.partial(0, share);
      for (std::size_t rank = 1; rank < ranks; ++rank) sum.merge(keys.partial(rank * share, (rank + 1) * share));
      EXPECT_NEAR(sum.out[0], exact.out, 5e-7) << ranks << " ranks";
      EXPECT_NEAR(sum.lse, exact.lse, 3e-6) << ranks << " ranks";
    }
  }
}

TEST(MergePartials, one_merge_rounds_the_lse_by_less_than_one_unit_in_the_last_place) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<float> uniform(-20.0f, 20.0f);
  for (int trial = 0; trial < 2000; ++trial) {
    const float a = uniform(random);
    const float b = uniform(random);
    Partial sum{{0.0f}, a};
    sum.merge({{0.0f}, b});
    const double exact = std::log(std::exp(double{a}) + std::exp(double{b}));
    const float top = std::max({std::fabs(a), std::fabs(b), std::fabs(sum.lse)});
    EXPECT_LT(std::fabs(sum.lse - exact), std::nextafter(top, 100.0f) - top) << a << " and " << b;
  }
}

// Public bug 7: an lse in base 2 merged as if it were natural, seen with a long past and a short suffix.
TEST(MergePartials, a_long_past_and_a_short_suffix_make_the_whole) {
  const Keys keys = random_keys(77, 4096 + 16);
  const Keys::Exact exact = keys.attend(0, 4112);
  Partial past = keys.partial(0, 4096);
  past.merge(keys.partial(4096, 4112));
  EXPECT_NEAR(past.out[0], exact.out, 1e-6);
  EXPECT_NEAR(past.lse, exact.lse, 2e-6);
}

TEST(MergePartials, every_row_and_head_is_merged_on_its_own) {
  std::vector<float> out(2 * 3 * 4);
  std::vector<float> other(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < out.size(); ++i) other[i] = static_cast<float>(i) + 2.0f;
  std::vector<float> lse = {0, kEmpty, 1, 2, 3, kEmpty};
  const std::vector<float> other_lse = {0, 5, kEmpty, 2, 3, kEmpty};
  merge_partials({out.data(), {2, 3, 4}}, {lse.data(), {2, 3}}, {other.data(), {2, 3, 4}}, {other_lse.data(), {2, 3}});
  const std::vector<float> shift = {1, 2, 0, 1, 1};
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(out[i], static_cast<float>(i) + shift[i / 4]);
  for (std::size_t i = 20; i < 24; ++i) EXPECT_EQ(out[i], 0.0f);
}

}  // namespace
}  // namespace ringmark::kernels
