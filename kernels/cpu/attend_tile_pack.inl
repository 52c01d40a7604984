// Widening and transposing of stored rows. Included after a simd header.
#pragma once

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/panel_product.h"

namespace {

using ringmark::DType;
using ringmark::kernels::cpu::panel_depth;
using ringmark::kernels::cpu::StoredRows;

template <DType kType>
Simd::V load_lanes(const std::byte* p) {
  if constexpr (kType == DType::kBfloat16) return Simd::from_bfloat16(p);
  if constexpr (kType == DType::kFloat16) return Simd::from_float16(p);
  if constexpr (kType == DType::kFloat32) {
    Simd::V lanes;
    __builtin_memcpy(&lanes, p, sizeof lanes);
    return lanes;
  }
}

template <DType kType>
float load_one(const std::byte* p) {
  if constexpr (kType == DType::kFloat32) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  } else {
    std::uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    if constexpr (kType == DType::kFloat16) return _cvtsh_ss(bits);
    return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
  }
}

// out[0, count) = scale * row. Reads nothing past the row.
template <DType kType>
void widen_row(const std::byte* row, std::int64_t count, float scale, float* out) {
  constexpr std::int64_t kBytes = kType == DType::kFloat32 ? 4 : 2;
  const Simd::V factor = Simd::set(scale);
  std::int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) {
    Simd::store(out + i, Simd::mul(load_lanes<kType>(row + i * kBytes), factor));
  }
  for (; i < count; ++i) out[i] = scale * load_one<kType>(row + i * kBytes);
}

void widen_row(DType dtype, const std::byte* row, std::int64_t count, float scale, float* out) {
  switch (dtype) {
    case DType::kBfloat16: return widen_row<DType::kBfloat16>(row, count, scale, out);
    case DType::kFloat16: return widen_row<DType::kFloat16>(row, count, scale, out);
    case DType::kFloat32: return widen_row<DType::kFloat32>(row, count, scale, out);
  }
}

void widen_rows(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float scale, float* out) {
  for (std::int64_t r = 0; r < count; ++r) {
    widen_row(rows.dtype, rows.first + r * rows.stride, head_dim, scale, out + r * head_dim);
  }
}

// out[j][i] = in[i][j] for an 8x8 block. Three rounds of shuffles instead of 64 scalar moves; eight lanes in both
// instruction sets, as a transpose costs the same there and is a few percent of a chunk.
void transpose_8x8(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride) {
  __m256 row[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(in + i * in_stride);
  __m256 pair[8];
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  __m256 quad[8];
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

void zero_floats(float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = 0.0f;
}

void pack_columns(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float scale, float* widened,
                  float* panels) {
  const std::int64_t depth = panel_depth(head_dim);
  for (std::int64_t first = 0; first < count; first += kPanelColumns) {
    const std::int64_t columns = count - first < kPanelColumns ? count - first : kPanelColumns;
    for (std::int64_t r = 0; r < columns; ++r) {
      float* row = widened + r * depth;
      widen_row(rows.dtype, rows.first + (first + r) * rows.stride, head_dim, scale, row);
      zero_floats(row + head_dim, depth - head_dim);
    }
    zero_floats(widened + columns * depth, (kPanelColumns - columns) * depth);
    float* panel = panels + first * depth;
    for (std::int64_t k = 0; k < depth; k += 8) {
      for (std::int64_t r = 0; r < kPanelColumns; r += 8) {
        transpose_8x8(widened + r * depth + k, depth, panel + k * kPanelColumns + r, kPanelColumns);
      }
    }
  }
}

template <DType kType>
bool pack_value_rows(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float* panels) {
  constexpr std::int64_t kBytes = kType == DType::kFloat32 ? 4 : 2;
  Simd::V not_finite = Simd::zero();  // 0 x infinity and 0 x NaN are NaN
  for (std::int64_t r = 0; r < count; ++r) {
    const std::byte* row = rows.first + r * rows.stride;
    for (std::int64_t first = 0; first < head_dim; first += kPanelColumns) {
      const std::int64_t columns = head_dim - first < kPanelColumns ? head_dim - first : kPanelColumns;
      float* out = panels + first * count + r * kPanelColumns;
      widen_row<kType>(row + first * kBytes, columns, 1.0f, out);
      zero_floats(out + columns, kPanelColumns - columns);
      for (int lane = 0; lane < kPanelColumns; lane += Simd::kLanes) {
        not_finite = Simd::fmadd(Simd::load(out + lane), Simd::zero(), not_finite);
      }
    }
  }
  return Simd::bits(Simd::less(not_finite, Simd::set(1.0f))) == (1u << Simd::kLanes) - 1u;
}

bool pack_values(const StoredRows& rows, std::int64_t count, std::int64_t head_dim, float* panels) {
  switch (rows.dtype) {
    case DType::kBfloat16: return pack_value_rows<DType::kBfloat16>(rows, count, head_dim, panels);
    case DType::kFloat16: return pack_value_rows<DType::kFloat16>(rows, count, head_dim, panels);
    case DType::kFloat32: return pack_value_rows<DType::kFloat32>(rows, count, head_dim, panels);
  }
  return false;
}

}  // namespace
