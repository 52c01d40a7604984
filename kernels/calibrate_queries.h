// Query calibration of HiLS-Attention: what a retrieval query is made of,
//     q~ = norm . x / sqrt(mean x^2 + eps),   x = W_q h + W_up (W_down h),   per query head, eps = 1e-6,
// before any rotation. The sum is taken before the norm, whose weights are its own. Source: arXiv 2607.02980, section
// on query calibration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/tensor.h"

namespace ringmark::kernels {

// Row-major weights of one dtype.
struct Calibration {
  DType dtype = DType::kFloat32;
  std::int64_t heads = 0;           // H
  std::int64_t head_dim = 0;        // d
  std::int64_t model_dim = 0;       // D, elements of a hidden state
  std::int64_t low_rank = 0;        // r
  const std::byte* q = nullptr;     // [H d, D]
  const std::byte* up = nullptr;    // [H d, r]
  const std::byte* down = nullptr;  // [r, D]
  const std::byte* norm = nullptr;  // [d]
};

inline constexpr double kCalibrationEpsilon = 1e-6;

// Bytes of the floats that some rows at a time are computed in.
std::int64_t calibration_bytes(const Calibration& weights, std::int64_t rows, int threads);

// hidden  [rows, D] hidden states in the dtype of the weights, as they enter W_q
// out     [rows, H, d] in that dtype: fp32 throughout, rounded once
// Products are chains of fused multiply-adds in ascending order of the inner dimension; a row depends on itself alone.
void calibrate_queries(const Calibration& weights, std::span<const std::byte> hidden, std::int64_t rows,
                       std::span<std::byte> out, int threads);

}  // namespace ringmark::kernels
