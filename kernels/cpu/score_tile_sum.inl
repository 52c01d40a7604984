// LogSum over vectors of scores: the terms and digits of LogSum::add, many lanes at a time. Part of score_tile.inl.

namespace {

constexpr float kRoundShift = 12582912.0f;  // 1.5 * 2^23
constexpr float kMinusInfinity = -__builtin_inff();

void fold_digits(SumLanes& sum) {
  const DigitLanes digits = DigitLanes::load(sum.digits);
  sum.total.high += digits.high();
  sum.total.low += digits.low();
  for (float* lane = reinterpret_cast<float*>(sum.digits); lane != reinterpret_cast<float*>(sum.digits + 256);
       lane += Simd::kLanes) {
    Simd::store(lane, Simd::zero());
  }
}

// Whether n of some exp(score) = m 2^n is `digit` or more above the unit of the high digit; 31 is the place's largest.
bool reaches(const SumLanes& sum, Vector exponents, float digit) {
  const Vector shifted = Simd::add(exponents, Simd::set(sum.shift));
  return Simd::bits(Simd::less(Simd::set(kRoundShift + (digit - 1.0f)), shifted)) != 0;
}

template <class Target>
void add_units(Target& digits, const SumLanes& sum, const float* scores, std::int64_t count) {
  const Vector log2e = Simd::set(kLog2E);
  const Vector shift = Simd::set(sum.shift);
  const Vector lowest = Simd::set(sum.lowest);
  for (std::int64_t i = 0; i < count; i += Simd::kLanes) {
    // The order of the operands makes NaN the lowest exponent, too.
    const Vector t = Simd::max(Simd::mul(Simd::load(scores + i), log2e), lowest);
    const Vector shifted = Simd::add(t, shift);
    const Vector f = Simd::sub(t, Simd::sub(shifted, shift));
    Vector factor = Simd::set(kExp2Coefficients[0]);
#pragma GCC unroll 6
    for (int power = 1; power < 7; ++power) factor = Simd::fmadd(factor, f, Simd::set(kExp2Coefficients[power]));
    digits.add(scale_by_shifted(factor, shifted));
  }
}

// Adds exp(score) of whole vectors of scores; NaN and -inf add nothing. `largest`: the largest score of every lane.
void add_scores(SumLanes& sum, const float* scores, std::int64_t count, Vector largest) {
  const Vector exponents = Simd::mul(largest, Simd::set(kLog2E));
  if (reaches(sum, exponents, 32.0f)) {
    fold_digits(sum);
    raise_sum(sum, Simd::max_of(largest));
  }
  if (sum.one_by_one) return add_one_by_one(sum.total, scores, count);
  if (Simd::bits(Simd::less(Simd::set(sum.lowest), exponents)) == 0) return;
  DigitLanes digits = DigitLanes::load(sum.digits);
  if (FewDigits::kFaster && count <= FewDigits::kMaxUnits * Simd::kLanes && !reaches(sum, exponents, 28.0f)) {
    FewDigits few;
    add_units(few, sum, scores, count);
    digits.add(few);
  } else {
    add_units(digits, sum, scores, count);
  }
  digits.store(sum.digits);
}

}  // namespace
