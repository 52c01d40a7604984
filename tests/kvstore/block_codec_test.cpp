#include "kvstore/block_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"

namespace ringmark::kvstore {
namespace {

using kernels::BlockShape;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};
constexpr BlockFormat kFormats[] = {BlockFormat::kAsInput, BlockFormat::kBfloat16, BlockFormat::kFloat16,
                                    BlockFormat::kFp8,     BlockFormat::kInt8,     BlockFormat::kInt4};
constexpr BlockFormat kQuantised[] = {BlockFormat::kFp8, BlockFormat::kInt8, BlockFormat::kInt4};

using Values = std::vector<float>;
using Memory = std::vector<std::byte>;

Memory narrowed(const Values& values, DType dtype) {
  Memory bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  narrow(values.data(), dtype, std::ssize(values), bytes.data());
  return bytes;
}

Values widened(const Memory& bytes, DType dtype) {
  Values values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  widen(bytes.data(), dtype, std::ssize(values), values.data());
  return values;
}

Memory encoded(const BlockCodec& codec, const Memory& block) {
  Memory bytes(static_cast<std::size_t>(codec.encoded_bytes()), std::byte{0xAA});
  codec.encode(block, bytes);
  return bytes;
}

Memory decoded(const BlockCodec& codec, const Memory& kept, const BlockShape& shape) {
  Memory block(static_cast<std::size_t>(shape.bytes()), std::byte{0xAA});
  codec.decode(kept, block);
  return block;
}

Values round_trip(BlockFormat format, const BlockShape& shape, const Values& values) {
  const BlockCodec codec(format, shape);
  return widened(decoded(codec, encoded(codec, narrowed(values, shape.dtype)), shape), shape.dtype);
}

Values random_values(const BlockShape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Values values(static_cast<std::size_t>(2 * shape.chunk_size * shape.head_dim));
  for (float& value : values) value = normal(random);
  return widened(narrowed(values, shape.dtype), shape.dtype);
}

float scale_at(const Memory& kept, std::int64_t index) {
  float scale;
  std::memcpy(&scale, kept.data() + 4 * index, 4);
  return scale;
}

void set_scale(Memory& kept, std::int64_t index, float scale) { std::memcpy(kept.data() + 4 * index, &scale, 4); }

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(BlockCodec, int8_by_hand) {
  const BlockShape shape{2, 2, DType::kFloat32};
  // K: channel 0 holds 127 and -1, channel 1 only 0. V: token 0 holds 254 and 3, token 1 holds -12.7 and 0.
  const Values values = {127, 0, -1, 0, 254, 3, -12.7f, 0};
  const BlockCodec codec(BlockFormat::kInt8, shape);
  const Memory kept = encoded(codec, narrowed(values, shape.dtype));
  EXPECT_EQ(codec.encoded_bytes(), 64);
  EXPECT_EQ(scale_at(kept, 0), 1.0f);
  EXPECT_EQ(scale_at(kept, 1), 0.0f);
  EXPECT_EQ(scale_at(kept, 2), 2.0f);
  EXPECT_FLOAT_EQ(scale_at(kept, 3), 0.1f);
  const std::int8_t codes[] = {127, 0, -1, 0, 127, 2, -127, 0};  // 3 / 2 = 1.5: to even
  EXPECT_EQ(std::memcmp(kept.data() + 16, codes, 8), 0);
  EXPECT_TRUE(std::all_of(kept.begin() + 24, kept.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(widened(decoded(codec, kept, shape), shape.dtype),
            (Values{127, 0, -1, 0, 254, 4, -127 * scale_at(kept, 3), 0}));
}

TEST(BlockCodec, int4_by_hand_with_an_odd_row) {
  const BlockShape shape{1, 3, DType::kFloat32};
  const Values values = {7, -14, 21, 7, -3, 1.4f};
  const BlockCodec codec(BlockFormat::kInt4, shape);
  const Memory kept = encoded(codec, narrowed(values, shape.dtype));
  // Scales 1, 2, 3 and 1; codes 7 -7 7 | 7 -3 1; value i + 2 stands above value i.
  const std::uint8_t codes[] = {0x77, 0x09, 0x17, 0x0D};
  EXPECT_EQ(std::memcmp(kept.data() + 16, codes, 4), 0);
  EXPECT_EQ(widened(decoded(codec, kept, shape), shape.dtype), (Values{7, -14, 21, 7, -3, 1}));
}

TEST(BlockCodec, fp8_by_hand) {
  const Values values = {448, -1.0625f, 0.875f, 1};  // V token: scale 1 / 448
  const BlockShape shape{1, 2, DType::kFloat32};
  const BlockCodec codec(BlockFormat::kFp8, shape);
  const Memory kept = encoded(codec, narrowed(values, shape.dtype));
  EXPECT_EQ(scale_at(kept, 0), 1.0f);
  EXPECT_EQ(kept[12], std::byte{0x7E});
  EXPECT_EQ(kept[13], std::byte{0xFE});  // a single token: each channel is its own largest
  EXPECT_EQ(kept[14], std::byte{0x7C});  // 0.875 * 448 = 392, halfway between 384 and 416: to even
  EXPECT_EQ(kept[15], std::byte{0x7E});
}

// The bound of the format: half a step of the code, then half a step of the layer's own precision.
TEST(BlockCodec, error_is_within_the_format) {
  for (const DType dtype : kDTypes) {
    const float own = dtype == DType::kFloat32 ? 0x1p-24f : dtype == DType::kBfloat16 ? 0x1p-8f : 0x1p-11f;
    for (const auto& [tokens, dims] : {std::pair<std::int64_t, std::int64_t>{16, 64}, {7, 33}, {1, 1}, {64, 128}}) {
      const BlockShape shape{tokens, dims, dtype};
      Values values = random_values(shape, static_cast<std::uint64_t>(dims));
      for (std::int64_t t = 0; t < tokens; ++t) values[t * dims] *= 512.0f;  // a hot channel of K
      values = widened(narrowed(values, dtype), dtype);
      for (const BlockFormat format : kQuantised) {
        const BlockCodec codec(format, shape);
        const Memory kept = encoded(codec, narrowed(values, dtype));
        const Values got = widened(decoded(codec, kept, shape), dtype);
        for (std::int64_t i = 0; i < std::ssize(values); ++i) {
          const std::int64_t token = i / dims;
          const float scale = scale_at(kept, token < tokens ? i % dims : dims + token - tokens);
          // fp8 has steps of an eighth of the power of two below a value, and of 2^-9 near 0.
          const float step =
              format != BlockFormat::kFp8 ? scale : std::max(scale * 0x1p-9f, std::fabs(values[i]) * 0.125f);
          const float bound = 0.5f * step * 1.0001f + std::fabs(got[i]) * own + 1e-7f * scale;
          ASSERT_LE(std::fabs(got[i] - values[i]), bound) << name_of(format) << " " << i;
        }
      }
    }
  }
}

TEST(BlockCodec, formats_that_hold_the_input_give_it_back) {
  const BlockShape half{5, 7, DType::kBfloat16};
  const Values values = random_values(half, 5);
  EXPECT_EQ(round_trip(BlockFormat::kAsInput, half, values), values);
  EXPECT_EQ(round_trip(BlockFormat::kBfloat16, half, values), values);
  EXPECT_EQ(round_trip(BlockFormat::kFloat16, {5, 7, DType::kFloat16}, values),
            widened(narrowed(values, DType::kFloat16), DType::kFloat16));
  EXPECT_EQ(round_trip(BlockFormat::kBfloat16, {5, 7, DType::kFloat32}, values), values);
  const Values exact = {1.5f, -0.0f, kInfinity, 3.0f};
  EXPECT_EQ(round_trip(BlockFormat::kFloat16, {1, 2, DType::kBfloat16}, exact), exact);
  EXPECT_TRUE(std::isnan(round_trip(BlockFormat::kFloat16, {1, 1, DType::kFloat32}, {kNan, 1})[0]));
}

TEST(BlockCodec, zeros_stay_zero) {
  for (const DType dtype : kDTypes) {
    for (const BlockFormat format : kFormats) {
      const BlockShape shape{4, 5, dtype};
      const Values zeros(40, 0.0f);
      EXPECT_EQ(round_trip(format, shape, zeros), zeros) << name_of(format);
      const BlockError error = BlockCodec(format, shape).error_of(narrowed(zeros, dtype));
      EXPECT_EQ(error.keys.relative, 0.0);
      EXPECT_EQ(error.values.largest, 0.0);
    }
  }
}

TEST(BlockCodec, holds_the_ends_of_the_range) {
  const float largest = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const BlockFormat format : kQuantised) {
    const Values back =
        round_trip(format, {2, 2, DType::kFloat32}, {largest, least, -largest, -least, largest, 0, least, least});
    EXPECT_NEAR(back[0] / largest, 1.0f, 1e-6f) << name_of(format);
    EXPECT_NEAR(back[2] / largest, -1.0f, 1e-6f) << name_of(format);
    EXPECT_LE(std::fabs(back[1]), std::numeric_limits<float>::min());
    EXPECT_EQ(round_trip(format, {1, 1, DType::kFloat16}, {65504.0f, -65504.0f}), (Values{65504.0f, -65504.0f}));
    const float bfloat16 = bfloat16_to_float(0x7F7F);
    EXPECT_EQ(round_trip(format, {1, 1, DType::kBfloat16}, {bfloat16, 1.0f}), (Values{bfloat16, 1.0f}));
  }
}

TEST(BlockCodec, refuses_values_that_it_cannot_hold) {
  const BlockShape shape{2, 2, DType::kFloat32};
  const auto encode = [](BlockFormat format, const BlockShape& of, const Values& values) {
    return refusal([&] { encoded(BlockCodec(format, of), narrowed(values, of.dtype)); });
  };
  for (const BlockFormat format : kQuantised) {
    EXPECT_NE(encode(format, shape, {1, 2, 3, kNan, 1, 1, 1, 1}).find("K channel 1"), std::string::npos);
    EXPECT_NE(encode(format, shape, {1, 2, 3, 4, 1, 1, -kInfinity, 1}).find("V token 1"), std::string::npos);
  }
  EXPECT_NE(encode(BlockFormat::kFloat16, shape, {1, 1, 1, 1e6f, 1, 1, 1, 1}).find("K channel 1"), std::string::npos);
  EXPECT_NE(encode(BlockFormat::kBfloat16, shape, {1, 1, 1, 1, 1, 1, 1, 3.4e38f}).find("V token 1"), std::string::npos);
  // 65504 is 65536 in bf16, which fp16 does not have.
  EXPECT_NE(encode(BlockFormat::kBfloat16, {1, 1, DType::kFloat16}, {65504, 1}).find("infinite"), std::string::npos);
}

// Scales of 0, -1, NaN and infinity were accepted elsewhere (47).
TEST(BlockCodec, refuses_scales_and_codes_that_nobody_writes) {
  for (const DType dtype : kDTypes) {
    const BlockShape shape{3, 4, dtype};
    for (const BlockFormat format : kQuantised) {
      const BlockCodec codec(format, shape);
      const Memory kept = encoded(codec, narrowed(random_values(shape, 9), dtype));
      for (const float scale : {0.0f, -1.0f, kNan, kInfinity, -kInfinity, std::numeric_limits<float>::max()}) {
        for (const std::int64_t index : {0, 3, 4, 6}) {
          Memory hostile = kept;
          set_scale(hostile, index, scale);
          EXPECT_NE(refusal([&] { decoded(codec, hostile, shape); }), "") << scale << " at " << index;
        }
      }
      const std::uint8_t never = format == BlockFormat::kFp8 ? 0x7F : format == BlockFormat::kInt8 ? 0x80 : 0x08;
      Memory hostile = kept;
      hostile[7 * 4] = std::byte{never};
      EXPECT_NE(refusal([&] { decoded(codec, hostile, shape); }).find("K token 0"), std::string::npos);
    }
  }
}

TEST(BlockCodec, any_bytes_decode_to_finite_values_or_are_refused) {
  std::mt19937_64 random(11);
  for (const DType dtype : kDTypes) {
    const BlockShape shape{3, 5, dtype};
    for (const BlockFormat format : kQuantised) {
      const BlockCodec codec(format, shape);
      const Memory kept = encoded(codec, narrowed(random_values(shape, 13), dtype));
      int accepted = 0;
      for (int i = 0; i < 2000; ++i) {
        Memory hostile = kept;
        hostile[random() % hostile.size()] = static_cast<std::byte>(random());
        Memory block(static_cast<std::size_t>(shape.bytes()));
        try {
          codec.decode(hostile, block);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kBadInput);
          continue;
        }
        ++accepted;
        for (const float value : widened(block, dtype)) ASSERT_TRUE(std::isfinite(value));
      }
      EXPECT_GT(accepted, 0);
      EXPECT_LT(accepted, 2000);
    }
  }
}

// Scales that were loaded but not used gave plausible nonsense elsewhere (47).
TEST(BlockCodec, keys_divided_by_64_with_scales_64_times_as_large_are_the_same) {
  const BlockShape shape{16, 32, DType::kBfloat16};
  const Values values = random_values(shape, 17);
  Values divided = values;
  for (float& value : divided) value /= 64.0f;
  for (const BlockFormat format : kQuantised) {
    const BlockCodec codec(format, shape);
    Memory kept = encoded(codec, narrowed(divided, shape.dtype));
    for (std::int64_t i = 0; i < 32 + 16; ++i) set_scale(kept, i, 64.0f * scale_at(kept, i));
    EXPECT_EQ(decoded(codec, kept, shape), decoded(codec, encoded(codec, narrowed(values, shape.dtype)), shape));
  }
}

TEST(BlockCodec, what_was_decoded_encodes_to_itself) {
  const BlockShape shape{8, 9, DType::kFloat32};
  const Values values = random_values(shape, 19);
  for (const BlockFormat format : kFormats) {
    const Values once = round_trip(format, shape, values);
    const BlockError error = BlockCodec(format, shape).error_of(narrowed(once, shape.dtype));
    EXPECT_LT(error.keys.relative, 1e-6) << name_of(format);
    EXPECT_LT(error.values.relative, 1e-6) << name_of(format);
  }
}

TEST(BlockCodec, reports_the_error_of_keys_and_values) {
  const BlockShape shape{2, 2, DType::kFloat32};
  const BlockError error =
      BlockCodec(BlockFormat::kInt8, shape).error_of(narrowed({127, 127, 0.25f, 1, 3, 254, 0, 0}, shape.dtype));
  EXPECT_EQ(error.keys.largest, 0.25);
  EXPECT_DOUBLE_EQ(error.keys.relative, 0.25 / std::sqrt((2 * 127.0 * 127.0 + 0.0625 + 1) / 4));
  EXPECT_EQ(error.values.largest, 1.0);
  EXPECT_DOUBLE_EQ(error.values.relative, 1.0 / std::sqrt((9.0 + 254.0 * 254.0) / 4));
  // A hot channel costs its neighbours nothing, a hot token costs the others nothing.
  Values hot = random_values({32, 16, DType::kFloat32}, 23);
  for (std::int64_t t = 0; t < 32; ++t) hot[t * 16 + 3] *= 1000.0f;
  const Values back = round_trip(BlockFormat::kInt8, {32, 16, DType::kFloat32}, hot);
  for (std::int64_t i = 0; i < 32 * 16; ++i) {
    const float bound = i % 16 == 3 ? 50.0f : 0.05f;
    ASSERT_LT(std::fabs(back[i] - hot[i]), bound);
  }
}

TEST(BlockCodec, encoded_blocks_have_the_size_that_is_said) {
  const BlockShape shape{64, 128, DType::kBfloat16};
  const std::int64_t scales = 4 * (128 + 64);
  EXPECT_EQ(BlockCodec(BlockFormat::kAsInput, shape).encoded_bytes(), 32768);
  EXPECT_EQ(BlockCodec(BlockFormat::kInt8, shape).encoded_bytes(), 16384 + scales);
  EXPECT_EQ(BlockCodec(BlockFormat::kFp8, shape).encoded_bytes(), 16384 + scales);
  EXPECT_EQ(BlockCodec(BlockFormat::kInt4, shape).encoded_bytes(), 8192 + scales);
  EXPECT_EQ(BlockCodec(BlockFormat::kFloat16, {64, 128, DType::kFloat32}).encoded_bytes(), 32768);
  EXPECT_EQ(BlockCodec(BlockFormat::kInt4, {1, 3, DType::kBfloat16}).encoded_bytes(), 64);
}

}  // namespace
}  // namespace ringmark::kvstore
