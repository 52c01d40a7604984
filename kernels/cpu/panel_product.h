// The one matrix product of the fast kernels: rows of A against a panel of kPanelColumns columns, operand B stored
// [depth][kPanelColumns]. Rows of A are given by address, so that any set of rows can be multiplied without copying.
//
// Every element of C is one chain of fused multiply-adds over the depth in ascending order (starting from 0 or from the
// old C), so it depends on neither the number of rows beside it nor the instruction set.
//
// Include after simd_avx2.h or simd_avx512.h; everything is local to the including file.
#pragma once

#include <cstdint>

namespace {

constexpr int kPanelColumns = 32;

enum class Accumulate { kFromZero, kFromC };

template <int kRows, Accumulate kMode>
inline void multiply_tile(const float* const* a, std::int64_t depth, const float* b, float* c, std::int64_t c_stride) {
  using V = Simd::V;
  constexpr int kVectors = Simd::kTileVectors;
  V sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = kMode == Accumulate::kFromC ? Simd::load(c + r * c_stride + v * Simd::kLanes) : Simd::zero();
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    V column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) column[v] = Simd::load(b + k * kPanelColumns + v * Simd::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V element = Simd::set(a[r][k]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::fmadd(element, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) Simd::store(c + r * c_stride + v * Simd::kLanes, sum[r][v]);
  }
}

template <int kRows, Accumulate kMode>
void multiply_few(int rows, const float* const* a, std::int64_t depth, const float* b, float* c,
                  std::int64_t c_stride) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_tile<kRows, kMode>(a, depth, b, c, c_stride);
    multiply_few<kRows - 1, kMode>(rows, a, depth, b, c, c_stride);
  }
}

// C[r][0, 32) of `rows` rows; c_stride in floats.
template <Accumulate kMode>
void multiply_panel(const float* const* a, std::int64_t rows, std::int64_t depth, const float* b, float* c,
                    std::int64_t c_stride) {
  constexpr int kColumns = Simd::kLanes * Simd::kTileVectors;
  std::int64_t r = 0;
  while (r < rows) {
    const int few = rows - r < Simd::kTileRows ? static_cast<int>(rows - r) : Simd::kTileRows;
    for (int column = 0; column < kPanelColumns; column += kColumns) {
      multiply_few<Simd::kTileRows, kMode>(few, a + r, depth, b + column, c + r * c_stride + column, c_stride);
    }
    r += few;
  }
}

}  // namespace
