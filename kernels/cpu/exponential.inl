// The exponential of every CPU kernel. Included after a simd header.
#pragma once

#include "kernels/exp2.h"

namespace {

constexpr float kInfinity = __builtin_inff();

// e^(x - top) for x <= top. Below 2^-126.5 it is exactly 0: the exponent field of 2^-127 is zero. NaN stays NaN.
Simd::V exponential(Simd::V x, Simd::V top) {
  namespace rk = ringmark::kernels;
  const Simd::V power = Simd::mul(Simd::sub(x, top), Simd::set(rk::kLog2E));
  const Simd::V t = Simd::max(Simd::set(-127.0f), power);
  const Simd::V n = Simd::round(t);
  const Simd::V f = Simd::sub(t, n);
  Simd::V value = Simd::set(rk::kExp2Coefficients[0]);
#pragma GCC unroll 6
  for (int i = 1; i < 7; ++i) value = Simd::fmadd(value, f, Simd::set(rk::kExp2Coefficients[i]));
  return Simd::scale_by_power(value, n);
}

}  // namespace
