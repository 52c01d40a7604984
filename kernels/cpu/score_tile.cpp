#include "kernels/cpu/score_tile.h"

#include <cmath>

#include "kernels/exp2.h"

namespace ringmark::kernels::cpu {
namespace {

// 1.5 * 2^23: adding it to |x| < 2^22 rounds x to the nearest integer, ties to even, in the low bits of the result.
constexpr float kRoundShift = 12582912.0f;
// Shift and exponent must add up exactly.
constexpr float kMaxExponent = 1 << 20;
// The low digit ends 32 below the unit of the high one; beyond it the factor in [0.70, 1.42] cannot reach.
constexpr float kBelowDigits = 40.0f;

}  // namespace

void raise_sum(SumLanes& sum, float score) {
  const float exponent = std::nearbyint(score * kLog2E);
  if (!(std::fabs(exponent) < kMaxExponent)) {
    sum.one_by_one = true;
    return;
  }
  sum.total.raise(LogSum::place_of(static_cast<std::int64_t>(exponent)));
  const auto unit = static_cast<float>(32 * (sum.total.place - 1));
  sum.shift = kRoundShift - unit;
  sum.lowest = unit - kBelowDigits;
}

void add_one_by_one(LogSum& total, const float* scores, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) total.add(scores[i]);
}

float take_value(SumLanes& sum) {
  const float value = sum.total.value();
  sum.total = LogSum();
  sum.shift = sum.lowest = std::numeric_limits<float>::infinity();
  sum.one_by_one = false;
  return value;
}

}  // namespace ringmark::kernels::cpu
