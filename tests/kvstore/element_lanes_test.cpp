// Eight elements or codes at a time against one at a time.
#include "kvstore/element_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kvstore/block_codes.h"
#include "tests/kvstore/fp8_values.h"

namespace ringmark::kvstore {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp8, by_hand) {
  EXPECT_EQ(fp8_to_float(0x38), 1.0f);
  EXPECT_EQ(fp8_to_float(0xB9), -1.125f);
  EXPECT_EQ(fp8_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(fp8_to_float(0x07), 0x7p-9f);
  EXPECT_EQ(fp8_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(fp8_to_float(0x7E), 448.0f);
  EXPECT_TRUE(std::isnan(fp8_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(fp8_to_float(0xFF)));
  EXPECT_EQ(float_to_fp8(1.0625f), 0x38);    // halfway between 1 and 1.125: to even
  EXPECT_EQ(float_to_fp8(1.1875f), 0x3A);    // halfway between 1.125 and 1.25: to even, up
  EXPECT_EQ(float_to_fp8(0x1p-10f), 0x00);   // halfway between 0 and the smallest: to even
  EXPECT_EQ(float_to_fp8(0x1.8p-9f), 0x02);  // halfway between 1 and 2 steps: to even, up
  EXPECT_EQ(float_to_fp8(0x7.8p-9f), 0x08);  // from the largest subnormal up to the smallest normal
  EXPECT_EQ(float_to_fp8(1e9f), 0x7E);       // saturates
  EXPECT_EQ(float_to_fp8(-kInfinity), 0xFE);
  EXPECT_EQ(float_to_fp8(kNan), kFp8Nan);
  EXPECT_EQ(float_to_fp8(-0.0f), 0x80);
}

TEST(Fp8, every_code_survives) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8_to_float(static_cast<std::uint8_t>(code));
    if (is_fp8_nan(static_cast<std::uint8_t>(code))) {
      ASSERT_TRUE(std::isnan(value));
    } else {
      ASSERT_EQ(float_to_fp8(value), code);
    }
  }
}

// Ties among neighbours go to the even code, as the specification says.
TEST(Fp8, rounds_to_the_nearest_of_all_values) {
  const auto nearest = [](float value) {
    int best = 0;
    for (int code = 1; code < 0x7F; ++code) {
      const double gap = std::fabs(fp8_to_float(static_cast<std::uint8_t>(code)) - double{value});
      const double least = std::fabs(fp8_to_float(static_cast<std::uint8_t>(best)) - double{value});
      if (gap < least || (gap == least && code % 2 == 0)) best = code;
    }
    return best;
  };
  std::vector<float> probes;
  for (int code = 0; code < 0x7E; ++code) {  // exact midpoints, and their two neighbours in fp32
    const float low = fp8_to_float(static_cast<std::uint8_t>(code));
    const float middle = (low + fp8_to_float(static_cast<std::uint8_t>(code + 1))) / 2;
    probes.insert(probes.end(), {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> exponent(-12.0f, 9.5f);
  for (int i = 0; i < 20000; ++i) probes.push_back(std::exp2(exponent(random)));
  for (const float probe : probes) {
    ASSERT_EQ(float_to_fp8(probe), nearest(probe)) << probe;
    ASSERT_EQ(float_to_fp8(-probe), nearest(probe) | 0x80) << probe;
  }
}

std::vector<float> lanes_of(__m256 values) {
  std::vector<float> lanes(8);
  _mm256_storeu_ps(lanes.data(), values);
  return lanes;
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// Every 16-bit pattern, NaN with every payload among them: widened as core/dtype.h does, and its fp32 value, beside
// those that lie close to halfway to the next, narrowed to either type.
template <DType dtype>
void expect_lanes_like_single_elements() {
  for (std::uint32_t first = 0; first < 0x10000; first += 8) {
    std::array<std::uint16_t, 8> elements;
    for (std::uint32_t i = 0; i < 8; ++i) elements[i] = static_cast<std::uint16_t>(first + i);
    const auto* const source = reinterpret_cast<const std::byte*>(elements.data());
    const std::vector<float> wide = lanes_of(load_lanes<dtype>(source, 8));
    std::array<float, 8> exact;
    widen(source, dtype, 8, exact.data());
    for (int i = 0; i < 8; ++i) ASSERT_EQ(bits(wide[i]), bits(exact[i])) << elements[i];
    for (const std::uint32_t change : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u}) {
      std::array<float, 8> near = exact;
      for (float& value : near) value = std::bit_cast<float>(bits(value) ^ change);
      const auto expect_narrowed = [&]<DType to>(std::integral_constant<DType, to>) {
        std::array<std::uint16_t, 8> expected, got;
        narrow(near.data(), to, 8, reinterpret_cast<std::byte*>(expected.data()));
        const __m128i lanes = ElementLanes<to>::narrow(_mm256_loadu_ps(near.data()));
        std::memcpy(got.data(), &lanes, sizeof(got));
        ASSERT_EQ(got, expected) << first << " " << change;
      };
      expect_narrowed(std::integral_constant<DType, DType::kBfloat16>{});
      expect_narrowed(std::integral_constant<DType, DType::kFloat16>{});
    }
  }
}

TEST(ElementLanes, all_65536_patterns_as_one_by_one) {
  expect_lanes_like_single_elements<DType::kBfloat16>();
  expect_lanes_like_single_elements<DType::kFloat16>();
}

TEST(ElementLanes, parts_of_a_vector_touch_nothing_else) {
  const std::uint16_t one = 0x3F80;
  std::array<std::uint16_t, 9> elements;
  elements.fill(one);
  for (std::int64_t lanes = 0; lanes <= 8; ++lanes) {
    const auto wide = lanes_of(load_lanes<DType::kBfloat16>(reinterpret_cast<std::byte*>(elements.data()), lanes));
    EXPECT_EQ(std::count(wide.begin(), wide.end(), 1.0f), lanes);
    EXPECT_EQ(std::count(wide.begin(), wide.end(), 0.0f), 8 - lanes);
    std::array<std::byte, 17> out{};
    store_bytes(out.data(), 2 * lanes, ElementLanes<DType::kBfloat16>::narrow(_mm256_set1_ps(1.0f)));
    EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{0x3F}), lanes);
  }
}

TEST(Fp8Lanes, all_65536_halves_and_all_codes_as_one_by_one) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    for (const float value :
         {float16_to_float(static_cast<std::uint16_t>(pattern)), bfloat16_to_float(static_cast<std::uint16_t>(pattern)),
          // Halfway between two codes, and the values beside it.
          std::bit_cast<float>(pattern << 16 | 0xFFFFu), std::bit_cast<float>(pattern << 16 | 1u)}) {
      if (!std::isfinite(value)) continue;
      const __m128i codes = Fp8Lanes::pack(_mm256_set1_ps(value));
      ASSERT_EQ(static_cast<std::uint8_t>(_mm_cvtsi128_si32(codes)), float_to_fp8(value)) << value;
    }
  }
  for (int code = 0; code < 256; ++code) {
    const float value = lanes_of(Fp8Lanes::unpack(_mm_set1_epi8(static_cast<char>(code))))[0];
    if (is_fp8_nan(static_cast<std::uint8_t>(code))) {
      ASSERT_GT(std::fabs(value), Fp8Lanes::kLargest);
    } else {
      ASSERT_EQ(bits(value), bits(fp8_to_float(static_cast<std::uint8_t>(code))));
    }
  }
}

}  // namespace
}  // namespace ringmark::kvstore
