#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/positions/alibi.h"
#include "kernels/positions/encoding.h"
#include "kernels/positions/slot_position.h"
#include "tests/kernels/rotated_rows.h"

namespace ringmark::kernels {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

PositionEncoding encoding_of(PositionKind kind, double factor = 1.0, std::int64_t original_length = 4096) {
  PositionEncoding encoding;
  encoding.kind = kind;
  encoding.factor = factor;
  encoding.original_length = original_length;
  return encoding;
}

std::size_t turning_pairs(const std::vector<double>& w) {
  std::size_t count = 0;
  for (const double frequency : w) count += frequency > 0.0 ? 1 : 0;
  return count;
}

TEST(PositionEncoding, rope_of_four_elements_by_hand) {
  const std::vector<double> w = inverse_frequencies(encoding_of(PositionKind::kRope), 4);
  ASSERT_EQ(w.size(), 2u);
  EXPECT_DOUBLE_EQ(w[0], 1.0);
  EXPECT_DOUBLE_EQ(w[1], 0.01);
}

TEST(PositionEncoding, factor_one_is_rope) {
  const std::vector<double> rope = inverse_frequencies(encoding_of(PositionKind::kRope), 128);
  for (const PositionKind kind : {PositionKind::kPi, PositionKind::kNtk, PositionKind::kYarn}) {
    EXPECT_EQ(inverse_frequencies(encoding_of(kind, 1.0), 128), rope) << name_of(kind);
  }
  EXPECT_EQ(scale_gain(encoding_of(PositionKind::kYarn, 1.0)), 1.0);
}

TEST(PositionEncoding, ntk_keeps_the_first_pair_and_slows_the_last_by_the_factor) {
  const std::vector<double> rope = inverse_frequencies(encoding_of(PositionKind::kRope), 128);
  const std::vector<double> ntk = inverse_frequencies(encoding_of(PositionKind::kNtk, 8.0), 128);
  EXPECT_EQ(ntk.front(), 1.0);
  EXPECT_NEAR(ntk.back(), rope.back() / 8.0, 1e-14 * rope.back());
}

// Llama-2: L = 4096, s = 32: pairs up to 20 turn more than 32 times within L and stay, those from 46 on turn less than
// once and are interpolated; mscale = 0.1 ln 32 + 1.
TEST(PositionEncoding, yarn_of_llama_2) {
  const PositionEncoding yarn = encoding_of(PositionKind::kYarn, 32.0);
  const std::vector<double> rope = inverse_frequencies(encoding_of(PositionKind::kRope), 128);
  const std::vector<double> w = inverse_frequencies(yarn, 128);
  for (std::size_t j = 0; j < w.size(); ++j) {
    if (j <= 20) {
      EXPECT_EQ(w[j], rope[j]) << j;
    } else if (j < 46) {
      EXPECT_TRUE(w[j] < rope[j] && w[j] > rope[j] / 32.0) << j;
    } else {
      EXPECT_NEAR(w[j], rope[j] / 32.0, 1e-15 * rope[j]) << j;
    }
  }
  EXPECT_NEAR(scale_gain(yarn), 1.81326, 5e-6);
  EXPECT_EQ(rotation_gain(yarn), 1.0);
  PositionEncoding in_rotation = yarn;
  in_rotation.gain_place = GainPlace::kRotation;
  EXPECT_NEAR(rotation_gain(in_rotation), 1.34657, 5e-6);
  EXPECT_EQ(scale_gain(in_rotation), 1.0);
}

// The released models: kept pairs of all, and the longest period among them.
TEST(PositionEncoding, hope_keeps_the_pairs_of_the_released_models) {
  struct Model {
    std::int64_t head_dim;
    double theta;
    std::int64_t length;
    std::size_t kept;
    double longest;
  };
  for (const Model& model :
       {Model{128, 5e5, 8192, 32, 3619}, Model{64, 1e4, 8192, 23, 3533}, Model{64, 1e7, 262144, 20, 90039}}) {
    PositionEncoding hope = encoding_of(PositionKind::kHope, 1.0, model.length);
    hope.theta = model.theta;
    const std::vector<double> w = inverse_frequencies(hope, model.head_dim);
    ASSERT_EQ(turning_pairs(w), model.kept);
    EXPECT_NEAR(2.0 * std::numbers::pi / w[model.kept - 1], model.longest, 1.0);
  }
}

TEST(PositionEncoding, hope_keeps_a_pair_that_just_turns_often_enough) {
  PositionEncoding hope = encoding_of(PositionKind::kHope);
  const double w = inverse_frequencies(encoding_of(PositionKind::kRope), 64)[17];
  const double turns = w * static_cast<double>(hope.original_length) / (2.0 * std::numbers::pi);
  hope.period_multiplier = turns * (1.0 - 1e-12);
  EXPECT_EQ(turning_pairs(inverse_frequencies(hope, 64)), 18u);
  hope.period_multiplier = turns * (1.0 + 1e-12);
  EXPECT_EQ(turning_pairs(inverse_frequencies(hope, 64)), 17u);
}

TEST(PositionEncoding, hope_always_keeps_the_first_pair) {
  PositionEncoding hope = encoding_of(PositionKind::kHope, 1.0, 7);
  hope.period_multiplier = 1000.0;
  EXPECT_EQ(turning_pairs(inverse_frequencies(hope, 64)), 1u);
}

TEST(PositionEncoding, partial_hope_ends_with_the_trained_length_as_period) {
  PositionEncoding hope = encoding_of(PositionKind::kHopePartial, 1.0, 8192);
  hope.kept_ratio = 0.25;
  const std::vector<double> w = inverse_frequencies(hope, 128);
  ASSERT_EQ(turning_pairs(w), 16u);
  EXPECT_EQ(w[0], 1.0);
  EXPECT_NEAR(2.0 * std::numbers::pi / w[15], 8192.0, 1e-8);
  hope.kept_ratio = 0.001;
  EXPECT_EQ(turning_pairs(inverse_frequencies(hope, 128)), 1u);
}

std::string refusal(const PositionEncoding& encoding, std::int64_t head_dim) {
  try {
    encoding.validate(head_dim);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(PositionEncoding, refuses_what_it_cannot_mean) {
  const auto expect = [](const char* part, PositionKind kind, std::int64_t head_dim, auto change) {
    PositionEncoding encoding = encoding_of(kind);
    change(encoding);
    const std::string text = refusal(encoding, head_dim);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find(name_of(kind)), std::string::npos) << text;
  };
  const auto as_it_is = [](PositionEncoding&) {};
  expect("rotary_dim = 65 is odd", PositionKind::kRope, 65, as_it_is);
  expect("rotary_dim = 66 is outside [0, head_dim = 64]", PositionKind::kRope, 64, [](auto& e) { e.rotary_dim = 66; });
  expect("rotary_dim = -2", PositionKind::kRope, 64, [](auto& e) { e.rotary_dim = -2; });
  expect("rotary_dim = 2 is below 4", PositionKind::kNtk, 2, as_it_is);
  expect("theta = 1 is not above 1", PositionKind::kRope, 64, [](auto& e) { e.theta = 1.0; });
  expect("theta = nan", PositionKind::kRope, 64, [](auto& e) { e.theta = kNaN; });
  expect("factor = 0.5 is outside [1, ", PositionKind::kPi, 64, [](auto& e) { e.factor = 0.5; });
  expect("factor = nan", PositionKind::kYarn, 64, [](auto& e) { e.factor = kNaN; });
  expect("original_length = 0 is outside [7, ", PositionKind::kYarn, 64, [](auto& e) { e.original_length = 0; });
  expect("original_length = 6", PositionKind::kHopePartial, 64, [](auto& e) { e.original_length = 6; });
  expect("beta_slow = 0", PositionKind::kYarn, 64, [](auto& e) { e.beta_slow = 0.0; });
  expect("beta_fast = 0.5", PositionKind::kYarn, 64, [](auto& e) { e.beta_fast = 0.5; });
  expect("attention_factor = -1", PositionKind::kYarn, 64, [](auto& e) { e.attention_factor = -1.0; });
  expect("period_multiplier = 0", PositionKind::kHope, 64, [](auto& e) { e.period_multiplier = 0.0; });
  expect("kept_ratio = 1.5", PositionKind::kHopePartial, 64, [](auto& e) { e.kept_ratio = 1.5; });
  EXPECT_EQ(refusal(encoding_of(PositionKind::kNone), 65), "accepted");
  EXPECT_EQ(refusal(encoding_of(PositionKind::kAlibi), 65), "accepted");
  for (const PositionKind kind : kRotatingKinds) EXPECT_EQ(refusal(encoding_of(kind), 64), "accepted");
}

TEST(PositionEncoding, refuses_positions_that_are_not_tested) {
  const auto text_of = [](const PositionEncoding& encoding, DType dtype, std::int64_t position) -> std::string {
    try {
      check_positions(encoding, dtype, std::array{std::int64_t{0}, position});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  };
  const PositionEncoding rope = encoding_of(PositionKind::kRope);
  EXPECT_EQ(text_of(rope, DType::kFloat32, kMaxPosition), "accepted");
  EXPECT_EQ(text_of(rope, DType::kFloat32, -kMaxPosition), "accepted");
  EXPECT_NE(text_of(rope, DType::kFloat32, kMaxPosition + 1).find("268435457 is outside [-268435456, 268435456]"),
            std::string::npos);
  // Amplitudes grow by 1.2528 / 512 a position in the logarithm: 2^60 after 16997 positions, 2^8 after 2266.
  PositionEncoding xpos = encoding_of(PositionKind::kXpos);
  EXPECT_EQ(text_of(xpos, DType::kBfloat16, 16996), "accepted");
  EXPECT_NE(text_of(xpos, DType::kBfloat16, 1'000'000).find("its amplitude in bf16 would overflow"), std::string::npos);
  EXPECT_NE(text_of(xpos, DType::kFloat16, 2267).find("outside [-2266, 2266]"), std::string::npos);
  EXPECT_EQ(text_of(encoding_of(PositionKind::kNone), DType::kFloat32, std::int64_t{1} << 40), "accepted");
}

TEST(AlibiSlopes, by_hand) {
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0x1p-8f}));
  EXPECT_EQ(alibi_slopes(2), (std::vector<float>{0x1p-4f, 0x1p-8f}));
  // Two heads' slopes, then the first of four heads'.
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{0x1p-4f, 0x1p-8f, 0x1p-2f}));
  EXPECT_EQ(alibi_bias(0.5f, 3), -1.5f);
  EXPECT_EQ(alibi_bias(0.5f, 0), 0.0f);
  // Positions beyond 2^24 still have neighbours: only their distance is rounded.
  EXPECT_NE(alibi_bias(0x1p-8f, 16'777'217 - 16'777'215), alibi_bias(0x1p-8f, 16'777'217 - 16'777'216));
}

TEST(SlotPosition, a_landmark_shares_the_position_of_the_next_ordinary_token) {
  EXPECT_EQ(position_of_slot(62, 64, true), 62);
  EXPECT_EQ(position_of_slot(63, 64, true), 63);  // the landmark of chunk 0
  EXPECT_EQ(position_of_slot(64, 64, true), 63);
  EXPECT_EQ(position_of_slot(127, 64, true), 126);
  EXPECT_EQ(position_of_slot(128, 64, true), 126);
  for (std::int64_t ordinary = 0; ordinary < 500; ++ordinary) {
    EXPECT_EQ(position_of_slot(ordinary + ordinary / 63, 64, true), ordinary);
  }
  for (std::int64_t chunk = 0; chunk < 50; ++chunk)
    EXPECT_EQ(position_of_slot(64 * chunk + 63, 64, true), 63 * (chunk + 1));
  EXPECT_EQ(position_of_slot(127, 64, false), 127);
}

}  // namespace
}  // namespace ringmark::kernels
