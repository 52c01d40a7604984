// Element types of inputs and blocks, and their exact widening to fp32. Maths is fp32 or fp64; these are storage only.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"

namespace ringmark {

enum class DType : std::uint8_t { kFloat32, kBfloat16, kFloat16 };

constexpr std::int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

inline std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "fp32";
    case DType::kBfloat16: return "bf16";
    case DType::kFloat16: return "fp16";
  }
  return "?";
}

inline float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Round to nearest even; NaN stays NaN.
inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
  const std::uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 0xFFu : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// Round to nearest even; overflow gives infinity, NaN stays NaN.
inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x1p-14f) {  // subnormal: a multiple of 2^-24, rounded by the current (nearest-even) mode
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFFu) + 0xFFFu + ((bits >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

// Calls `convert` with the bits of `count` consecutive 16-bit elements at any alignment. A template, so that the loop
// of each conversion can be vectorised.
template <class Convert>
void widen_halves(const std::byte* source, std::int64_t count, float* out, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = convert(bits);
  }
}

// Widens `count` consecutive elements. The source needs no alignment, and may be null where nothing is asked for.
inline void widen(const std::byte* source, DType dtype, std::int64_t count, float* out) {
  if (count == 0) return;
  switch (dtype) {
    case DType::kFloat32: std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(float)); break;
    case DType::kBfloat16: widen_halves(source, count, out, bfloat16_to_float); break;
    case DType::kFloat16: widen_halves(source, count, out, float16_to_float); break;
  }
}

// Rounds `count` consecutive fp32 values to `dtype` (nearest even). The destination needs no alignment; as above.
inline void narrow(const float* source, DType dtype, std::int64_t count, std::byte* out) {
  if (count == 0) return;
  if (dtype == DType::kFloat32) {
    std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = dtype == DType::kBfloat16 ? float_to_bfloat16(source[i]) : float_to_float16(source[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

}  // namespace ringmark
