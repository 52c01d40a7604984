// The 8-bit float e4m3 one value at a time: what the codes of kvstore/block_codes.h are compared with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ringmark::kvstore {

inline constexpr std::uint8_t kFp8Nan = 0x7F;

constexpr bool is_fp8_nan(std::uint8_t code) { return (code & 0x7Fu) == kFp8Nan; }

// Exact.
inline float fp8_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9f;
  float value = magnitude < 8 ? subnormal : normal;
  value = magnitude == kFp8Nan ? std::bit_cast<float>(0x7FC00000u) : value;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | (std::uint32_t{code} & 0x80u) << 24);
}

// Round to nearest even; what is larger than 448, infinity too, becomes 448, NaN stays NaN.
inline std::uint8_t float_to_fp8(float value) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 24 & 0x80u;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t normal = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
  // Adding 2^14 rounds to a multiple of 2^-9; its count is then in the low bits.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(magnitude + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  std::uint32_t code = magnitude < 0x1p-6f ? subnormal : normal;
  code = value != value ? std::uint32_t{kFp8Nan} : code;
  return static_cast<std::uint8_t>(code | sign);
}

}  // namespace ringmark::kvstore
