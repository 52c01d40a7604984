#include "kernels/log_sum.h"

#include <algorithm>
#include <cmath>

#include "kernels/exp2.h"

namespace ringmark::kernels {

void LogSum::raise(std::int64_t to) {
  if (!empty() && to <= place) return;
  low = !empty() && to == place + 1 ? high : 0.0;
  high = 0.0;
  place = to;
}

void LogSum::add(float score) {
  if (!(score > -kLargestScore)) return;  // NaN too
  const float t = std::min(score, kLargestScore) * kLog2E;
  const float n = std::nearbyint(t);
  raise(place_of(static_cast<std::int64_t>(n)));
  const std::int64_t exponent = static_cast<std::int64_t>(n) - 32 * (place - 1);
  if (exponent < -34) return;  // below the lower digit
  const float unit = std::ldexp(exp2_fraction(t - n), static_cast<int>(exponent));
  const float digit = std::floor(unit);
  high += digit;
  low += std::floor((unit - digit) * 0x1p32f);
}

void LogSum::add(const LogSum& other) {
  if (other.empty()) return;
  LogSum term = other;
  raise(term.place);
  term.raise(place);
  high += term.high;
  low += term.low;
}

float LogSum::value() const {
  if (empty()) return -std::numeric_limits<float>::infinity();
  constexpr double kLn2Double = 0.69314718055994530942;
  const double digits = high + low * 0x1p-32;
  return static_cast<float>(std::log(digits) + 32.0 * static_cast<double>(place - 1) * kLn2Double);
}

double LogSum::share_of(const LogSum& whole) const {
  const double digits = high + low * 0x1p-32;
  const double digits_of_whole = whole.high + whole.low * 0x1p-32;
  return std::ldexp(digits / digits_of_whole,
                    static_cast<int>(std::clamp<std::int64_t>(32 * (place - whole.place), -4096, 4096)));
}

}  // namespace ringmark::kernels
