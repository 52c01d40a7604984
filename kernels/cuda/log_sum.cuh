// LogSum on the device, bit for bit (kernels/log_sum.h). Digits are integers here, too; sums of them may be split over
// lanes and merged in any order.
#pragma once

#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/log_sum.h"

namespace ringmark::kernels::cuda {

// floor(factor * 2^exponent * 2^32): the high digit above bit 32, the low one below. factor in [0.5, 2), exponent <=
// 31, the product below 2^32. `bits` are those of the factor with the exponent added to its own.
__device__ inline unsigned long long digits_of_bits(std::uint32_t bits) {
  const std::uint32_t mantissa = (bits << 8) | 0x80000000u;
  unsigned long long digits;
  // The shift of PTX gives 0 for 64 places and more; that of C++ is undefined.
  asm("shr.b64 %0, %1, %2;"
      : "=l"(digits)
      : "l"(static_cast<unsigned long long>(mantissa) << 32), "r"(158u - (bits >> 23)));
  return digits;
}

struct DigitSum {
  std::int64_t place = LogSum::kEmpty;
  unsigned long long high = 0;
  unsigned long long low = 0;

  __device__ bool empty() const { return place == LogSum::kEmpty; }
  __device__ static std::int64_t place_of(std::int64_t n) { return (n >> 5) + 1; }

  __device__ void raise(std::int64_t to) {
    if (!empty() && to <= place) return;
    low = !empty() && to == place + 1 ? high : 0;
    high = 0;
    place = to;
  }
  __device__ void add_digits(unsigned long long digits) {
    high += digits >> 32;
    low += digits & 0xFFFFFFFFu;
  }

  // As LogSum::add.
  __device__ void add(float score) {
    if (!(score > -LogSum::kLargestScore)) return;
    const float t = __fmul_rn(fminf(score, LogSum::kLargestScore), kLog2E);
    const float n = rintf(t);
    raise(place_of(static_cast<std::int64_t>(n)));
    const std::int64_t exponent = static_cast<std::int64_t>(n) - 32 * (place - 1);
    if (exponent < -34) return;
    const std::uint32_t factor = __float_as_uint(exp2_fraction(__fsub_rn(t, n)));
    add_digits(digits_of_bits(factor + (static_cast<std::uint32_t>(static_cast<std::int32_t>(exponent)) << 23)));
  }

  __device__ LogSum log_sum() const { return {place, static_cast<double>(high), static_cast<double>(low)}; }
};

// As LogSum::value; log of fp64 may differ from the CPU's by its last bit, which the rounding to fp32 all but hides.
__device__ inline float value_of(const LogSum& sum) {
  if (sum.place == LogSum::kEmpty) return -__builtin_huge_valf();
  constexpr double kLn2Double = 0.69314718055994530942;
  const double digits = __dadd_rn(sum.high, __dmul_rn(sum.low, 0x1p-32));
  const double unit = __dmul_rn(32.0 * static_cast<double>(sum.place - 1), kLn2Double);
  return static_cast<float>(__dadd_rn(log(digits), unit));
}

// The digits of kCount scores a lane, of all lanes, whose exponents fit the rounding below: |32 (place - 1)| < 2^20 and
// no term at 2^(32 place) or above. NaN and what lies below the digits add nothing.
template <int kCount>
__device__ void add_near_terms(const float (&scores)[kCount], std::int64_t place, DigitSum& lane_sum) {
  constexpr float kRoundShift =
      12582912.0f;  // 1.5 * 2^23: adding it to |x| < 2^22 rounds x to an integer, ties to even
  const float unit = static_cast<float>(32 * (place - 1));
  const float shift = kRoundShift - unit;
  const float lowest = unit - 40.0f;  // no digit is left of this
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float t = fmaxf(__fmul_rn(scores[i], kLog2E), lowest);
    const float shifted = __fadd_rn(t, shift);
    const float f = __fsub_rn(t, __fsub_rn(shifted, shift));
    lane_sum.add_digits(digits_of_bits(__float_as_uint(exp2_fraction(f)) + (__float_as_uint(shifted) << 23)));
  }
}

// Over the kLanes lanes of a group.
template <int kLanes>
__device__ float largest_of_lanes(float value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
template <int kLanes>
__device__ unsigned long long sum_of_lanes(unsigned long long value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// The part of a lane in adding scores to a sum that its group of kLanes lanes shares, in shared memory. Called by whole
// warps. NaN adds nothing.
template <int kLanes>
struct LaneSum {
  DigitSum digits;
  bool adds;  // whether there is anything to add

  // largest: of all scores that the group will add.
  __device__ LaneSum(const DigitSum& sum, float largest) : digits{sum.place}, adds(largest > -LogSum::kLargestScore) {
    if (!adds) return;
    const float top = rintf(__fmul_rn(fminf(largest, LogSum::kLargestScore), kLog2E));
    digits.place = max(sum.place, DigitSum::place_of(static_cast<std::int64_t>(top)));
  }

  template <int kCount>
  __device__ void add(const float (&scores)[kCount]) {
    constexpr float kMostNear = 1 << 20;
    if (!adds) return;
    if (fabsf(static_cast<float>(32 * (digits.place - 1))) < kMostNear) {
      add_near_terms(scores, digits.place, digits);
    } else {
      for (int i = 0; i < kCount; ++i) digits.add(scores[i]);
    }
  }

  __device__ void finish(DigitSum& sum, int lane) const {
    const unsigned long long high = sum_of_lanes<kLanes>(digits.high), low = sum_of_lanes<kLanes>(digits.low);
    if (adds && lane % kLanes == 0) {
      sum.raise(digits.place);
      sum.high += high;
      sum.low += low;
    }
    __syncwarp();
  }
};

}  // namespace ringmark::kernels::cuda
