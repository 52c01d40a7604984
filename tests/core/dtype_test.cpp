#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ringmark {
namespace {

TEST(Bfloat16, by_hand) {
  EXPECT_EQ(bfloat16_to_float(0x3F80), 1.0f);
  EXPECT_EQ(float_to_bfloat16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(1.00390625f), 0x3F80);  // 1 + 2^-8 lies halfway: to even
  EXPECT_EQ(float_to_bfloat16(1.01171875f), 0x3F82);  // 1 + 3 * 2^-8: to even, up
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Bfloat16, every_value_survives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_bfloat16(value), bits);
  }
}

TEST(Float16, by_hand) {
  EXPECT_EQ(float16_to_float(0x3C00), 1.0f);
  EXPECT_EQ(float16_to_float(0x0001), 0x1p-24f);  // smallest subnormal
  EXPECT_EQ(float16_to_float(0xFBFF), -65504.0f);
  EXPECT_EQ(float_to_float16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_float16(65520.0f), 0x7C00);  // rounds to infinity
}

TEST(Float16, every_value_survives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_float16(value), bits);
  }
}

TEST(Widen, takes_any_alignment) {
  std::byte bytes[7] = {};
  const std::uint16_t one = 0x3F80, two = 0x4000;
  std::memcpy(bytes + 1, &one, 2);
  std::memcpy(bytes + 3, &two, 2);
  float out[2];
  widen(bytes + 1, DType::kBfloat16, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 2.0f);
}

// memcpy from or to null is undefined even for no bytes, as the sanitizers say.
TEST(DType, nothing_may_lie_nowhere) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    widen(nullptr, dtype, 0, nullptr);
    narrow(nullptr, dtype, 0, nullptr);
  }
}

}  // namespace
}  // namespace ringmark
