#include "kernels/cpu/simd_avx512.h"

namespace {

using Vector = Simd::V;

Vector positions_from(std::int32_t first) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_set1_epi32(first), lane));
}

std::uint32_t equal_lanes(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
std::uint32_t lanes_at_least(Vector a, Vector bound) { return _mm512_cmp_ps_mask(a, bound, _CMP_GE_OQ); }

Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
float min_of(Vector a) { return _mm512_reduce_min_ps(a); }

// The chosen lanes first, in order.
Vector compress(std::uint32_t chosen, Vector a) { return _mm512_maskz_compress_ps(static_cast<__mmask16>(chosen), a); }

float sum_of(Vector a) { return _mm512_reduce_add_ps(a); }

// factor * 2^n, where the low bits of `shifted` hold n.
Vector scale_by_shifted(Vector factor, Vector shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(factor), exponent));
}

struct Digits {
  __m512i high, low;
};

// High and low digit of a unit below 2^32.
Digits digits_of(Vector unit) {
  const Vector rest = _mm512_reduce_ps(unit, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return {_mm512_cvttps_epu32(unit), _mm512_cvttps_epu32(_mm512_mul_ps(rest, _mm512_set1_ps(0x1p32f)))};
}

// Digits of a few units below 2^29, 32 bits a lane: high digits cannot overflow, carries of the low ones are counted.
struct FewDigits {
  static constexpr bool kFaster = true;
  static constexpr int kMaxUnits = 8;
  __m512i high = _mm512_setzero_si512();
  __m512i low = _mm512_setzero_si512();
  __m512i carries = _mm512_setzero_si512();

  void add(Vector unit) {
    const Digits digits = digits_of(unit);
    high = _mm512_add_epi32(high, digits.high);
    low = _mm512_add_epi32(low, digits.low);
    carries = _mm512_mask_add_epi32(carries, _mm512_cmplt_epu32_mask(low, digits.low), carries, _mm512_set1_epi32(1));
  }
};

// 64-bit integer lanes: digits are below 2^32.
struct DigitLanes {
  __m512i high_even, high_odd, low_even, low_odd;

  static DigitLanes load(const unsigned char* p) {
    return {_mm512_load_si512(p), _mm512_load_si512(p + 64), _mm512_load_si512(p + 128), _mm512_load_si512(p + 192)};
  }
  void store(unsigned char* p) const {
    _mm512_store_si512(p, high_even);
    _mm512_store_si512(p + 64, high_odd);
    _mm512_store_si512(p + 128, low_even);
    _mm512_store_si512(p + 192, low_odd);
  }
  void add(Digits digits) {
    const __m512i even = _mm512_set1_epi64(0xFFFFFFFF);
    high_even = _mm512_add_epi64(high_even, _mm512_and_si512(digits.high, even));
    high_odd = _mm512_add_epi64(high_odd, _mm512_srli_epi64(digits.high, 32));
    low_even = _mm512_add_epi64(low_even, _mm512_and_si512(digits.low, even));
    low_odd = _mm512_add_epi64(low_odd, _mm512_srli_epi64(digits.low, 32));
  }
  void add(Vector unit) { add(digits_of(unit)); }
  void add(const FewDigits& few) {
    add(Digits{few.high, few.low});
    low_even = _mm512_add_epi64(low_even, _mm512_slli_epi64(few.carries, 32));
    low_odd = _mm512_add_epi64(low_odd, _mm512_andnot_si512(_mm512_set1_epi64(0xFFFFFFFF), few.carries));
  }
  double high() const { return static_cast<double>(_mm512_reduce_add_epi64(_mm512_add_epi64(high_even, high_odd))); }
  double low() const { return static_cast<double>(_mm512_reduce_add_epi64(_mm512_add_epi64(low_even, low_odd))); }
};

}  // namespace

#define RM_SCORE_TILE score_tile_avx512
#include "kernels/cpu/score_tile.inl"
