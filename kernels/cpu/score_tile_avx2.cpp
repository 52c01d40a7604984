#include "kernels/cpu/simd_avx2.h"

namespace {

using Vector = Simd::V;

Vector positions_from(std::int32_t first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_set1_epi32(first), lane));
}

std::uint32_t equal_lanes(Vector a, Vector b) { return Simd::bits(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
std::uint32_t lanes_at_least(Vector a, Vector bound) { return Simd::bits(_mm256_cmp_ps(a, bound, _CMP_GE_OQ)); }

Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
float min_of(Vector a) { return -Simd::max_of(Simd::sub(Simd::zero(), a)); }

// The chosen lanes first, in order: their numbers are gathered byte by byte, then permute the vector.
Vector compress(std::uint32_t chosen, Vector a) {
  const std::uint64_t bytes = _pdep_u64(chosen, 0x0101010101010101u) * 0xFF;
  const auto lanes = static_cast<long long>(_pext_u64(0x0706050403020100u, bytes));
  return _mm256_permutevar8x32_ps(a, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(lanes)));
}

float sum_of(Vector a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// factor * 2^n, where the low bits of `shifted` hold n.
Vector scale_by_shifted(Vector factor, Vector shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(factor), exponent));
}

// Nothing is faster for a few units: the conversion to fp64 is short already.
struct FewDigits {
  static constexpr bool kFaster = false;
  static constexpr int kMaxUnits = 0;

  void add(Vector) {}
};

// fp64 lanes: there is no conversion to unsigned integers.
struct DigitLanes {
  __m256d high_front, high_back, low_front, low_back;

  static DigitLanes load(const unsigned char* p) {
    const auto* lanes = reinterpret_cast<const double*>(p);
    return {_mm256_load_pd(lanes), _mm256_load_pd(lanes + 4), _mm256_load_pd(lanes + 8), _mm256_load_pd(lanes + 12)};
  }
  void store(unsigned char* p) const {
    auto* lanes = reinterpret_cast<double*>(p);
    _mm256_store_pd(lanes, high_front);
    _mm256_store_pd(lanes + 4, high_back);
    _mm256_store_pd(lanes + 8, low_front);
    _mm256_store_pd(lanes + 12, low_back);
  }
  void add(Vector unit) {
    const Vector high = Simd::floor(unit);
    const Vector low = Simd::floor(Simd::mul(Simd::sub(unit, high), Simd::set(0x1p32f)));
    high_front = _mm256_add_pd(high_front, _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
    high_back = _mm256_add_pd(high_back, _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
    low_front = _mm256_add_pd(low_front, _mm256_cvtps_pd(_mm256_castps256_ps128(low)));
    low_back = _mm256_add_pd(low_back, _mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)));
  }
  void add(const FewDigits&) {}
  static double total(__m256d lanes) {
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd(lanes, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
  }
  double high() const { return total(_mm256_add_pd(high_front, high_back)); }
  double low() const { return total(_mm256_add_pd(low_front, low_back)); }
};

}  // namespace

#define RM_SCORE_TILE score_tile_avx2
#include "kernels/cpu/score_tile.inl"
