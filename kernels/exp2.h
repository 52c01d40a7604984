// 2^t = polynomial(f) * 2^n with n = round(t), f = t - n. Every kernel evaluates this polynomial in this order of fused
// multiply-adds, so that the scalar, AVX2 and AVX-512 paths give the same bits. Relative error 1e-7; 2^0 is exactly 1.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ringmark::kernels {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;

// Minimax fit of 2^f on [-0.5, 0.5], highest power first.
inline constexpr float kExp2Coefficients[7] = {0.00015345810970757157f,
                                               0.0013399932067841291f,
                                               0.009618489071726799f,
                                               0.05550328642129898f,
                                               0.24022646248340607f,
                                               0.6931471824645996f,
                                               1.0f};

// The factor of 2^n, in [0.70, 1.42]. |f| <= 0.5.
inline float exp2_fraction(float f) {
  float value = kExp2Coefficients[0];
  for (int i = 1; i < 7; ++i) value = std::fma(value, f, kExp2Coefficients[i]);
  return value;
}

// exp(x) for x <= 0, or above it by rounding; 0 below the smallest normal number, NaN for NaN.
inline float exp_of_negative(float x) {
  if (std::isnan(x)) return x;
  const float t = std::max(x * kLog2E, -126.0f);
  const float n = std::nearbyint(t);
  const auto power = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  return x * kLog2E < -126.0f ? 0.0f : exp2_fraction(t - n) * power;
}

}  // namespace ringmark::kernels
