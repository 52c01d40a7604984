// The soft cap of logits: cap tanh(z / cap). Included after a simd header.
#pragma once

#include "kernels/cpu/exponential.inl"

namespace {

// tanh(y) / y - 1 = y^2 p(y^2) up to |y| = 1/2, fitted to a relative error of tanh of 1.5e-8; highest power first.
constexpr float kTanhCoefficients[4] = {0.01724148541688919f, -0.05304549261927605f, 0.13325878977775574f,
                                        -0.333331435918808f};

// Relative error 4e-7. Near 0 it is z plus a small part of z, so that a small product keeps its bits; from half the cap
// on it is cap (1 - t) / (1 + t), t = e^(-2 |z| / cap), which an infinite z takes to the cap itself. NaN stays NaN.
Simd::V capped(Simd::V z, Simd::V cap) {
  const Simd::V y = Simd::div(z, cap);
  const Simd::V size = Simd::max(Simd::sub(Simd::zero(), y), y);
  const Simd::V square = Simd::mul(y, y);
  Simd::V series = Simd::set(kTanhCoefficients[0]);
#pragma GCC unroll 3
  for (int i = 1; i < 4; ++i) series = Simd::fmadd(series, square, Simd::set(kTanhCoefficients[i]));
  const Simd::V near = Simd::fmadd(z, Simd::mul(square, series), z);
  const Simd::V t = exponential(Simd::mul(size, Simd::set(-2.0f)), Simd::zero());
  const Simd::V one = Simd::set(1.0f);
  const Simd::V far = Simd::mul(cap, Simd::div(Simd::sub(one, t), Simd::add(one, t)));
  const Simd::V signed_far = Simd::select(Simd::less(y, Simd::zero()), Simd::sub(Simd::zero(), far), far);
  return Simd::select(Simd::less(size, Simd::set(0.5f)), near, signed_far);
}

// Whole registers of scores.
void cap_scores(float* scores, std::int64_t count, float cap) {
  const Simd::V limit = Simd::set(cap);
  for (std::int64_t i = 0; i < count; i += Simd::kLanes) {
    Simd::store(scores + i, capped(Simd::load(scores + i), limit));
  }
}

}  // namespace
