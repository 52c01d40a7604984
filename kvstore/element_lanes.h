// Eight consecutive elements at a time, at any address: the same bits as core/dtype.h gives one by one. The
// instructions are those of the baseline, x86-64-v3.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace ringmark::kvstore {

inline constexpr std::int64_t kLanes = 8;

// Calls `use(first, lanes)` for the elements of a row, `lanes` of them from `first` on.
template <class Use>
[[gnu::always_inline]] inline void for_lanes(std::int64_t count, Use use) {
  std::int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) use(first, kLanes);
  if (first < count) use(first, count - first);
}

// The first `bytes` bytes of a vector; what a load lacks is 0. A whole vector is one instruction.
template <class Vector>
Vector load_bytes(const std::byte* source, std::int64_t bytes) {
  Vector lanes{};
  if (bytes == sizeof(Vector)) {
    std::memcpy(&lanes, source, sizeof(Vector));
  } else {
    std::memcpy(&lanes, source, static_cast<std::size_t>(bytes));
  }
  return lanes;
}
template <class Vector>
void store_bytes(std::byte* out, std::int64_t bytes, const Vector& lanes) {
  if (bytes == sizeof(Vector)) {
    std::memcpy(out, &lanes, sizeof(Vector));
  } else {
    std::memcpy(out, &lanes, static_cast<std::size_t>(bytes));
  }
}

inline __m256 is_nan(__m256 lanes) { return _mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q); }

inline __m256i bits_of(__m256 lanes) { return _mm256_castps_si256(lanes); }

inline __m256 magnitude(__m256 lanes) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), lanes); }

// 32-bit lanes below 2^16 as 16-bit ones.
inline __m128i to_halves(__m256i lanes) {
  return _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
}

// Elements of a type to fp32 and back, nearest even. narrow_finite() takes no NaN.
template <DType dtype>
struct ElementLanes;

template <>
struct ElementLanes<DType::kFloat32> {
  using Vector = __m256;
  static __m256 widen(__m256 lanes) { return lanes; }
  static __m256 narrow(__m256 lanes) { return lanes; }
  static __m256 narrow_finite(__m256 lanes) { return lanes; }
};

template <>
struct ElementLanes<DType::kBfloat16> {
  using Vector = __m128i;
  static __m256 widen(__m128i lanes) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lanes), 16));
  }
  static __m128i narrow(__m256 lanes) { return to_halves(quieted(lanes, rounded(lanes))); }
  static __m128i narrow_finite(__m256 lanes) { return to_halves(rounded(lanes)); }

 private:
  static __m256i rounded(__m256 lanes) {
    const __m256i bits = bits_of(lanes);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(half, odd), 16);
  }
  static __m256i quieted(__m256 lanes, __m256i rounded) {
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits_of(lanes), 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, bits_of(is_nan(lanes)));
  }
};

template <>
struct ElementLanes<DType::kFloat16> {
  using Vector = __m128i;
  static __m256 widen(__m128i lanes) {
    const __m256 wide = _mm256_cvtph_ps(lanes);
    // The instruction sets the quiet bit of a NaN.
    const __m256i payload = _mm256_slli_epi32(_mm256_cvtepu16_epi32(lanes), 13);
    const __m256i quiet_bit = _mm256_and_si256(bits_of(is_nan(wide)), _mm256_set1_epi32(0x400000));
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_andnot_si256(payload, quiet_bit), bits_of(wide)));
  }
  static __m128i narrow(__m256 lanes) {
    const __m128i rounded = narrow_finite(lanes);
    // The instruction keeps the payload of a NaN.
    const __m128i nan = to_halves(_mm256_srli_epi32(bits_of(is_nan(lanes)), 16));
    const __m128i quiet = _mm_or_si128(_mm_and_si128(rounded, _mm_set1_epi16(INT16_MIN)), _mm_set1_epi16(0x7E00));
    return _mm_blendv_epi8(rounded, quiet, nan);
  }
  static __m128i narrow_finite(__m256 lanes) { return _mm256_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT); }
};

template <DType dtype>
__m256 load_lanes(const std::byte* source, std::int64_t lanes) {
  using Vector = typename ElementLanes<dtype>::Vector;
  return ElementLanes<dtype>::widen(load_bytes<Vector>(source, lanes * size_of(dtype)));
}

inline __m256 load_lanes(const float* source, std::int64_t lanes) {
  return load_lanes<DType::kFloat32>(reinterpret_cast<const std::byte*>(source), lanes);
}

}  // namespace ringmark::kvstore
