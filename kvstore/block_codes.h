// The codes of a quantised block: scaled values to rows of bytes and back, eight at a time. Each type says how large a
// scaled value may be and how many bytes a row takes; unpack() gives what pack() rounded to, and something larger than
// kLargest for codes that pack() never writes.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvstore/element_lanes.h"

namespace ringmark::kvstore {

// The 8-bit float e4m3 of the OCP specification in its "fn" form, as tensor cores read it: 1 sign, 4 exponent bits
// (bias 7), 3 mantissa bits; no infinity, one NaN a sign (0x7F, 0xFF), largest value 448, smallest 2^-9.
// pack() takes finite values and rounds to nearest even; what is larger than 448 becomes 448.
struct Fp8Lanes {
  static constexpr float kLargest = 448.0f;

  // In steps of an eighth of the power of two below it, 2^-6 at least, a value is a count up to 16; 2^20 times that
  // power is large enough for the count to be rounded in the low bits of a sum.
  static __m128i pack(__m256 values) {
    const __m256 limited = _mm256_min_ps(magnitude(values), _mm256_set1_ps(kLargest));
    const __m256i exponent = _mm256_and_si256(bits_of(limited), _mm256_set1_epi32(0x7F800000));
    const __m256i power = _mm256_max_epi32(exponent, _mm256_set1_epi32(kSmallestPower));
    const __m256i shift = _mm256_add_epi32(power, _mm256_set1_epi32(20 << 23));
    const __m256i count = _mm256_sub_epi32(bits_of(_mm256_add_ps(limited, _mm256_castsi256_ps(shift))), shift);
    const __m256i steps_below = _mm256_sub_epi32(_mm256_srli_epi32(power, 20), _mm256_set1_epi32(kSmallestPower >> 20));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits_of(values), 24), _mm256_set1_epi32(0x80));
    const __m128i halves = to_halves(_mm256_or_si256(_mm256_add_epi32(count, steps_below), sign));
    return _mm_packus_epi16(halves, halves);
  }
  // As fp16 a code means 2^-8 of its value, below the smallest normal one too; NaN comes out as 480.
  static __m256 unpack(__m128i codes) {
    const __m128i high = _mm_unpacklo_epi8(_mm_setzero_si128(), codes);
    const __m128i sign = _mm_and_si128(high, _mm_set1_epi16(INT16_MIN));
    const __m128i rest = _mm_srli_epi16(_mm_add_epi16(high, high), 2);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(sign, rest)), _mm256_set1_ps(256.0f));
  }

 private:
  static constexpr std::int32_t kSmallestPower = (127 - 6) << 23;  // bits of 2^-6
};

struct Int8Lanes {
  static constexpr float kLargest = 127.0f;

  static __m128i pack(__m256 values) {
    const __m256i codes = _mm256_cvtps_epi32(values);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packs_epi16(halves, halves);
  }
  static __m256 unpack(__m128i codes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)); }
};

// One byte a value. pack: scaled_at(first, lanes) gives the values of a row, 0 past its end. unpack: use(first, lanes,
// values).
template <class Lanes>
struct ByteCodes {
  static constexpr float kLargest = Lanes::kLargest;
  static std::int64_t row_bytes(std::int64_t count) { return count; }

  template <class ScaledAt>
  static void pack(ScaledAt scaled_at, std::int64_t count, std::byte* row) {
    for_lanes(count, [&](std::int64_t first, std::int64_t lanes) {
      store_bytes(row + first, lanes, Lanes::pack(scaled_at(first, lanes)));
    });
  }
  template <class Use>
  static void unpack(const std::byte* row, std::int64_t count, Use use) {
    for_lanes(count, [&](std::int64_t first, std::int64_t lanes) {
      use(first, lanes, Lanes::unpack(load_bytes<__m128i>(row + first, lanes)));
    });
  }
};

using Fp8Codes = ByteCodes<Fp8Lanes>;
using Int8Codes = ByteCodes<Int8Lanes>;

// Two's complement nibbles: byte i of a row holds value i in its low half and value i + row_bytes in its high half,
// which is 0 past the end of a row of odd length.
struct Int4Codes {
  static constexpr float kLargest = 7.0f;
  static std::int64_t row_bytes(std::int64_t count) { return (count + 1) / 2; }

  template <class ScaledAt>
  static void pack(ScaledAt scaled_at, std::int64_t count, std::byte* row) {
    const std::int64_t half = row_bytes(count);
    for_lanes(half, [&](std::int64_t first, std::int64_t lanes) {
      const std::int64_t behind = first + half;
      const __m128i low = Int8Lanes::pack(scaled_at(first, lanes));
      const __m128i high = Int8Lanes::pack(scaled_at(behind, std::min(lanes, count - behind)));
      const __m128i nibble = _mm_set1_epi8(0xF);
      store_bytes(row + first, lanes,
                  _mm_or_si128(_mm_and_si128(low, nibble), _mm_slli_epi16(_mm_and_si128(high, nibble), 4)));
    });
  }
  template <class Use>
  static void unpack(const std::byte* row, std::int64_t count, Use use) {
    const std::int64_t half = row_bytes(count);
    for_lanes(half, [&](std::int64_t first, std::int64_t lanes) {
      const std::int64_t behind = first + half, lanes_behind = std::min(lanes, count - behind);
      const __m128i low = load_bytes<__m128i>(row + first, lanes);
      const __m128i high = lanes_behind == lanes ? low : load_bytes<__m128i>(row + first, lanes_behind);
      use(first, lanes, nibbles<28>(_mm256_slli_epi32(_mm256_cvtepi8_epi32(low), 28)));
      use(behind, lanes_behind, nibbles<4>(_mm256_cvtepi8_epi32(high)));
    });
  }

 private:
  // Signed: what stands above `bits` bits.
  template <int bits>
  static __m256 nibbles(__m256i lanes) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(lanes, bits));
  }
};

}  // namespace ringmark::kvstore
