#include "kernels/calibrate_queries.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"

namespace ringmark::kernels {
namespace {

using cpu::kPanelWidth;
using cpu::TileKernels;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Rows of floats, and where each begins.
struct FloatRows {
  FloatRows(std::int64_t rows, std::int64_t width) : values(size(rows * width)) {
    for (std::int64_t row = 0; row < rows; ++row) begins.push_back(values.data() + row * width);
  }

  cpu::AlignedFloats values;
  std::vector<const float*> begins;
};

// Products of all rows with a panel of up to kPanelWidth weight rows at a time. One per thread.
class PanelProduct {
 public:
  PanelProduct(const TileKernels& kernels, DType dtype, std::int64_t depth, std::int64_t rows)
      : kernels_(kernels),
        dtype_(dtype),
        depth_(depth),
        rows_(rows),
        widened_(size(kPanelWidth * cpu::panel_depth(depth))),
        panel_(widened_.size()),
        products_(size(rows * kPanelWidth)) {}

  // [rows][kPanelWidth], valid until the next call; columns from `count` on are zero.
  const float* multiply(const FloatRows& rows, const std::byte* weights, std::int64_t first, std::int64_t count) {
    const std::int64_t row_bytes = depth_ * size_of(dtype_);
    kernels_.pack_columns({weights + first * row_bytes, row_bytes, dtype_}, count, depth_, 1.0f, widened_.data(),
                          panel_.data());
    kernels_.multiply(rows.begins.data(), rows_, depth_, panel_.data(), products_.data());
    return products_.data();
  }

 private:
  const TileKernels& kernels_;
  DType dtype_;
  std::int64_t depth_;
  std::int64_t rows_;
  cpu::AlignedFloats widened_;
  cpu::AlignedFloats panel_;
  cpu::AlignedFloats products_;
};

// x of one head becomes q~.
void normalise(float* x, const float* norm, std::int64_t head_dim) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < head_dim; ++i) squares += double{x[i]} * double{x[i]};
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(head_dim) + kCalibrationEpsilon));
  for (std::int64_t i = 0; i < head_dim; ++i) x[i] *= factor * norm[i];
}

void multiply_down(const Calibration& weights, const TileKernels& kernels, const FloatRows& hidden, std::int64_t rows,
                   FloatRows& low, int threads) {
  const std::int64_t panels = (weights.low_rank + kPanelWidth - 1) / kPanelWidth;
#pragma omp parallel num_threads(threads)
  {
    PanelProduct product(kernels, weights.dtype, weights.model_dim, rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t first = panel * kPanelWidth;
      const std::int64_t count = std::min(kPanelWidth, weights.low_rank - first);
      const float* products = product.multiply(hidden, weights.down, first, count);
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(products + row * kPanelWidth, count, low.values.data() + row * weights.low_rank + first);
      }
    }
  }
}

void multiply_heads(const Calibration& weights, const TileKernels& kernels, const FloatRows& hidden,
                    const FloatRows& low, std::int64_t rows, std::span<const float> norm, std::span<std::byte> out,
                    int threads) {
  const std::int64_t head_dim = weights.head_dim;
#pragma omp parallel num_threads(threads)
  {
    PanelProduct full(kernels, weights.dtype, weights.model_dim, rows);
    PanelProduct up(kernels, weights.dtype, weights.low_rank, rows);
    std::vector<float> sums(size(rows * head_dim));  // x of one head
#pragma omp for schedule(dynamic)
    for (std::int64_t head = 0; head < weights.heads; ++head) {
      for (std::int64_t first = 0; first < head_dim; first += kPanelWidth) {
        const std::int64_t count = std::min(kPanelWidth, head_dim - first);
        const float* one = full.multiply(hidden, weights.q, head * head_dim + first, count);
        const float* other = up.multiply(low, weights.up, head * head_dim + first, count);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t i = 0; i < count; ++i) {
            sums[size(row * head_dim + first + i)] = one[row * kPanelWidth + i] + other[row * kPanelWidth + i];
          }
        }
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        float* x = sums.data() + row * head_dim;
        normalise(x, norm.data(), head_dim);
        std::byte* to = out.data() + (row * weights.heads + head) * head_dim * size_of(weights.dtype);
        narrow(x, weights.dtype, head_dim, to);
      }
    }
  }
}

}  // namespace

std::int64_t calibration_bytes(const Calibration& weights, std::int64_t rows, int threads) {
  const std::int64_t panels = 2 * kPanelWidth * (weights.model_dim + weights.low_rank + 16) + 2 * rows * kPanelWidth;
  return 4 * (rows * (weights.model_dim + weights.low_rank) + threads * (panels + rows * weights.head_dim));
}

void calibrate_queries(const Calibration& weights, std::span<const std::byte> hidden, std::int64_t rows,
                       std::span<std::byte> out, int threads) {
  const TileKernels& kernels = cpu::tile_kernels();
  FloatRows states(rows, weights.model_dim);
  widen(hidden.data(), weights.dtype, rows * weights.model_dim, states.values.data());
  FloatRows low(rows, weights.low_rank);
  std::vector<float> norm(size(weights.head_dim));
  widen(weights.norm, weights.dtype, weights.head_dim, norm.data());
  multiply_down(weights, kernels, states, rows, low, threads);
  multiply_heads(weights, kernels, states, low, rows, norm, out, threads);
}

}  // namespace ringmark::kernels
