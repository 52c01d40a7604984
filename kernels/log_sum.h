// LogSum: ln(sum exp(s)) whose bits do not depend on the order of the terms nor on how they were split over tiles and
// ranks. The group rank of a chunk uses the lse over all eligible chunks; an order-dependent last bit there could
// change a selection with the rank count. This type makes that impossible.
//
// How: a term exp(s) = m 2^n (exp2.h; a function of s alone) is cut, towards zero, into two digits of the fixed binary
// grid whose places are multiples of 32. Digits are integers, so sums of up to 2^21 of them are exact in fp64. Kept are
// the two digits below the place of the largest term: u = m 2^(n - 32 (place - 1)), high = floor(u),
// low = floor((u - high) 2^32). When a larger term raises the place by one, high becomes low: what a smaller term
// contributes there is the digit it would have contributed all along. Cut off is less than 2^-32 of the largest term a
// term.
#pragma once

#include <cstdint>
#include <limits>

namespace ringmark::kernels {

struct LogSum {
  static constexpr float kLargestScore = 0x1p60f;
  static constexpr std::int64_t kEmpty = std::numeric_limits<std::int64_t>::min();

  std::int64_t place = kEmpty;  // terms are below 2^(32 place)
  double high = 0.0;            // an integer, in units of 2^(32 (place - 1))
  double low = 0.0;             // an integer, in units of 2^(32 (place - 2))

  bool empty() const { return place == kEmpty; }
  // The place of a term m 2^n.
  static std::int64_t place_of(std::int64_t n) { return (n >> 5) + 1; }

  // Adds exp(score). NaN and what lies below -kLargestScore add nothing; what lies above it counts as kLargestScore, so
  // that an overflowed dot product cannot leave the integers.
  void add(float score);
  // Adds all terms of another sum. Commutative, associative, exact.
  void add(const LogSum& other);
  // Makes room for terms of a higher place; a lower one changes nothing.
  void raise(std::int64_t to);
  // Natural logarithm, rounded once to fp32; -inf when empty.
  float value() const;
  // This sum over another: exactly 1 of itself, and not rounded to a logarithm on the way. Neither is empty.
  double share_of(const LogSum& whole) const;
};

}  // namespace ringmark::kernels
