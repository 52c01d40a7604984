#include "kernels/positions/rotation.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace ringmark::kernels {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Taylor series around 0 for |x| <= pi/4: errors below 7e-12 and 3e-12.
double sine_near_zero(double x) {
  const double y = x * x;
  double value = -1.0 / 39916800.0;
  value = std::fma(value, y, 1.0 / 362880.0);
  value = std::fma(value, y, -1.0 / 5040.0);
  value = std::fma(value, y, 1.0 / 120.0);
  value = std::fma(value, y, -1.0 / 6.0);
  return std::fma(value * y, x, x);
}

double cosine_near_zero(double x) {
  const double y = x * x;
  double value = 1.0 / 479001600.0;
  value = std::fma(value, y, -1.0 / 3628800.0);
  value = std::fma(value, y, 1.0 / 40320.0);
  value = std::fma(value, y, -1.0 / 720.0);
  value = std::fma(value, y, 1.0 / 24.0);
  value = std::fma(value, y, -0.5);
  return std::fma(value, y, 1.0);
}

// The nearest whole number of |t| < 2^51, without a call that would keep a loop from being vectorised.
double nearest(double t) {
  constexpr double kShift = 0x1.8p52;
  return (t + kShift) - kShift;
}

void turn(const RowAngles& angles, std::int64_t j, float& a, float& b) {
  const float c = angles.cosine[j];
  const float s = angles.sine[j];
  const float turned = std::fma(a, c, -(b * s));
  b = std::fma(a, s, b * c);
  a = turned;
}

}  // namespace

Rotation::Rotation(const PositionEncoding& encoding, Side side, std::int64_t head_dim)
    : layout_(encoding.layout),
      half_(encoding.rotary_dim_of(head_dim) / 2),
      gain_(rotation_gain(encoding)),
      center_(encoding.center) {
  for (const double w : inverse_frequencies(encoding, head_dim)) {
    if (w > 0.0) turns_[pairs_++] = w / kTwoPi;
  }
  if (encoding.kind != PositionKind::kXpos) return;
  amplified_ = true;
  const std::vector<double> decay = xpos_decay(2 * half_);
  for (std::size_t j = 0; j < decay.size(); ++j) growth_[j] = side == Side::kQuery ? decay[j] : -decay[j];
}

void Rotation::find_angles(std::int64_t position, RowAngles& angles) const {
  const auto n = static_cast<double>(position);
  for (std::int64_t j = 0; j < pairs_; ++j) {
    const double turns = n * turns_[j];
    const double quarters = 4.0 * (turns - nearest(turns));  // exact, in [-2, 2]
    const double whole = nearest(quarters);
    const double x = (quarters - whole) * (kTwoPi / 4.0);
    const double c = cosine_near_zero(x);
    const double s = sine_near_zero(x);
    // cos and sin of the whole quarters, 0 or +-1.
    const double c_whole = 1.0 - std::fabs(whole);
    const double s_whole = whole * (2.0 - std::fabs(whole));
    angles.cosine[j] = static_cast<float>(gain_ * (c * c_whole - s * s_whole));
    angles.sine[j] = static_cast<float>(gain_ * (s * c_whole + c * s_whole));
  }
  if (amplified_) amplify(position, angles);
}

void Rotation::turn_head(const RowAngles& angles, DType dtype, const std::byte* in, std::byte* out) const {
  float x[kMaxHeadDim];
  const std::int64_t offset = half_ * size_of(dtype);
  if (layout_ == PairLayout::kHalf) {
    float* const b = x + kMaxPairs;
    widen(in, dtype, pairs_, x);
    widen(in + offset, dtype, pairs_, b);
    for (std::int64_t j = 0; j < pairs_; ++j) turn(angles, j, x[j], b[j]);
    narrow(x, dtype, pairs_, out);
    narrow(b, dtype, pairs_, out + offset);
  } else {
    widen(in, dtype, 2 * pairs_, x);
    for (std::int64_t j = 0; j < pairs_; ++j) turn(angles, j, x[2 * j], x[2 * j + 1]);
    narrow(x, dtype, 2 * pairs_, out);
  }
}

void Rotation::amplify(std::int64_t position, RowAngles& angles) const {
  const auto distance = static_cast<double>(position - center_);
  for (std::int64_t j = 0; j < pairs_; ++j) {
    const auto amplitude = static_cast<float>(std::exp(distance * growth_[j]));
    angles.cosine[j] *= amplitude;
    angles.sine[j] *= amplitude;
  }
}

}  // namespace ringmark::kernels
