// The codes of a quantised block: rows of scaled values to bytes and back. Each type says how large a scaled value may
// be and how many bytes a row takes; unpack() gives what pack() rounded to.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kvstore/fp8.h"

namespace ringmark::kvstore {

// Nearest even. Not lrint, whose result is 64 bits wide: loops over it are not vectorised.
inline std::int32_t round_to_int(float value) { return static_cast<std::int32_t>(std::nearbyint(value)); }

struct Fp8Codes {
  static constexpr float kLargest = kLargestFp8;
  static std::int64_t row_bytes(std::int64_t count) { return count; }

  static void pack(const float* scaled, std::int64_t count, std::byte* row) {
    for (std::int64_t i = 0; i < count; ++i) row[i] = std::byte{float_to_fp8(scaled[i])};
  }
  static void unpack(const std::byte* row, std::int64_t count, float* out) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = fp8_to_float(std::to_integer<std::uint8_t>(row[i]));
  }
};

struct Int8Codes {
  static constexpr float kLargest = 127.0f;
  static std::int64_t row_bytes(std::int64_t count) { return count; }

  static void pack(const float* scaled, std::int64_t count, std::byte* row) {
    for (std::int64_t i = 0; i < count; ++i) row[i] = static_cast<std::byte>(round_to_int(scaled[i]));
  }
  static void unpack(const std::byte* row, std::int64_t count, float* out) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int8_t>(row[i]);
  }
};

// Two's complement nibbles: byte i of a row holds value i in its low half and value i + row_bytes in its high half,
// which is 0 past the end of a row of odd length.
struct Int4Codes {
  static constexpr float kLargest = 7.0f;
  static std::int64_t row_bytes(std::int64_t count) { return (count + 1) / 2; }

  static void pack(const float* scaled, std::int64_t count, std::byte* row) {
    const std::int64_t half = row_bytes(count);
    for (std::int64_t i = 0; i < count - half; ++i) row[i] = nibble(scaled[i]) | nibble(scaled[i + half]) << 4;
    if (count % 2 != 0) row[half - 1] = nibble(scaled[half - 1]);
  }
  static void unpack(const std::byte* row, std::int64_t count, float* out) {
    const std::int64_t half = row_bytes(count);
    for (std::int64_t i = 0; i < half; ++i) out[i] = low_nibble(row[i]);
    for (std::int64_t i = 0; i < count - half; ++i) out[i + half] = low_nibble(row[i] >> 4);
  }

 private:
  static std::byte nibble(float scaled) { return static_cast<std::byte>(round_to_int(scaled) & 0xF); }
  static float low_nibble(std::byte code) {
    return static_cast<float>((std::to_integer<int>(code & std::byte{0xF}) ^ 8) - 8);
  }
};

}  // namespace ringmark::kvstore
