// Exponentials and their sums. Sums run over kVirtualLanes lanes (column modulo 16) in ascending order and are then
// added by halves, so that 8 and 16 lane registers give the same bits. Included after a simd header.
#pragma once

#include "kernels/cpu/exponential.inl"
#include "kernels/cpu/panel_product.h"

namespace {

constexpr int kVirtualLanes = 16;
constexpr int kLaneVectors = kVirtualLanes / Simd::kLanes;

alignas(64) constexpr float kLaneIndex[kVirtualLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Lanes of vector v of a block of virtual lanes that are below `count`.
Simd::Mask lanes_below(int v, std::int64_t count) {
  return Simd::less(Simd::load(kLaneIndex + v * Simd::kLanes), Simd::set(static_cast<float>(count)));
}

float add_lanes(const Simd::V (&lanes)[kLaneVectors]) {
  alignas(64) float stored[kVirtualLanes];
  for (int v = 0; v < kLaneVectors; ++v) Simd::store(stored + v * Simd::kLanes, lanes[v]);
  const __m256 eight = _mm256_add_ps(_mm256_load_ps(stored), _mm256_load_ps(stored + 8));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

float largest(const float* scores, std::int64_t count) {
  Simd::V top = Simd::set(-kInfinity);
  std::int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) top = Simd::max(top, Simd::load(scores + i));
  if (i < count) {
    top = Simd::max(top, Simd::select(lanes_below(0, count - i), Simd::load(scores + i), Simd::set(-kInfinity)));
  }
  return Simd::max_of(top);
}

// What scores are measured from: -inf - -inf would be NaN, so a row without a finite score is measured from 0.
float base_of(float top) { return top == -kInfinity ? 0.0f : top; }

// Scores become e^(score - base), zero up to the next multiple of kVirtualLanes. Returns their sum.
float exponentiate_from(float base, float* scores, std::int64_t count) {
  const Simd::V from = Simd::set(base);
  Simd::V total[kLaneVectors];
  for (Simd::V& lanes : total) lanes = Simd::zero();
  std::int64_t i = 0;
  for (; i + kVirtualLanes <= count; i += kVirtualLanes) {
#pragma GCC unroll 2
    for (int v = 0; v < kLaneVectors; ++v) {
      float* at = scores + i + v * Simd::kLanes;
      const Simd::V weight = exponential(Simd::load(at), from);
      Simd::store(at, weight);
      total[v] = Simd::add(total[v], weight);
    }
  }
  for (int v = 0; i < count && v < kLaneVectors; ++v) {
    float* at = scores + i + v * Simd::kLanes;
    const Simd::V weight = Simd::select(lanes_below(v, count - i), exponential(Simd::load(at), from), Simd::zero());
    Simd::store(at, weight);
    total[v] = Simd::add(total[v], weight);
  }
  return add_lanes(total);
}

float exponentiate(float* scores, std::int64_t count, float* top) {
  *top = largest(scores, count);
  return exponentiate_from(base_of(*top), scores, count);
}

void sum_columns(const float* scores, std::int64_t count, float* top, float* sum) {
  for (int column = 0; column < kPanelColumns; column += Simd::kLanes) {
    const float* at = scores + column;
    const Simd::V empty = Simd::set(-kInfinity);
    Simd::V high = empty;
    for (std::int64_t i = 0; i < count; ++i) high = Simd::max(high, Simd::load(at + i * kPanelColumns));
    const Simd::V base = Simd::select(Simd::less(empty, high), high, Simd::zero());
    Simd::V total = Simd::zero();
    for (std::int64_t i = 0; i < count; ++i) {
      total = Simd::add(total, exponential(Simd::load(at + i * kPanelColumns), base));
    }
    Simd::store(top + column, high);
    Simd::store(sum + column, total);
  }
}

}  // namespace
