// Exponentials on the device: that of kernels/exp2.h, to the bit, and the chip's own, for what need not agree with the
// CPU. The constants of kernels/exp2.h serve both.
#pragma once

#include "kernels/exp2.h"

namespace ringmark::kernels::cuda {

// As kernels::exp2_fraction. The intrinsics keep the compiler from fusing what the CPU does not fuse.
__device__ inline float exp2_fraction(float f) {
  // Device code may read constants, but not the elements of a constant array of the host.
  constexpr float c0 = kExp2Coefficients[0], c1 = kExp2Coefficients[1], c2 = kExp2Coefficients[2],
                  c3 = kExp2Coefficients[3], c4 = kExp2Coefficients[4], c5 = kExp2Coefficients[5],
                  c6 = kExp2Coefficients[6];
  float value = __fmaf_rn(c0, f, c1);
  value = __fmaf_rn(value, f, c2);
  value = __fmaf_rn(value, f, c3);
  value = __fmaf_rn(value, f, c4);
  value = __fmaf_rn(value, f, c5);
  return __fmaf_rn(value, f, c6);
}

// exp(x) for x <= 0; 0 below the smallest normal number, NaN for NaN.
__device__ inline float exp_of_negative(float x) {
  const float t = __fmul_rn(x, kLog2E);
  const float n = rintf(t);
  const float power = __int_as_float((static_cast<int>(n) + 127) << 23);
  const float value = __fmul_rn(exp2_fraction(__fsub_rn(t, n)), power);
  return t < -126.0f ? 0.0f : value;
}

// 2^t to 2 ulp; 2^0 is exactly 1, and 0 below 2^-126.
__device__ inline float exp2_approximate(float t) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  return power;
}

}  // namespace ringmark::kernels::cuda
