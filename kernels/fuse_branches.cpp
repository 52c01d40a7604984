#include "kernels/fuse_branches.h"

#include <cmath>
#include <cstddef>

namespace ringmark::kernels {
namespace {

// 1 / rms, from a sum in fp64: its order of adding does not show.
float inverse_rms(const float* row, std::int64_t head_dim) {
  double sum = 0.0;
  for (std::int64_t k = 0; k < head_dim; ++k) sum += double{row[k]} * double{row[k]};
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(head_dim) + kBranchNormEpsilon));
}

float weight_of(std::span<const float> weights, std::int64_t k) {
  return weights.empty() ? 1.0f : weights[static_cast<std::size_t>(k)];
}

}  // namespace

void fuse_branches(TensorView<float, 3> out, TensorView<float, 2> lse, const GlobalRows& global,
                   std::span<const float> gates, const BranchNorms& norms, int threads) {
  const std::int64_t head_dim = out.dim(2);
#pragma omp parallel for num_threads(threads)
  for (std::int64_t row = 0; row < out.dim(0); ++row) {
    for (std::int64_t head = 0; head < out.dim(1); ++head) {
      float* local = out.at(row, head);
      const float factor = inverse_rms(local, head_dim);
      for (std::int64_t k = 0; k < head_dim; ++k) local[k] *= factor * weight_of(norms.local, k);
    }
  }
#pragma omp parallel for num_threads(threads)
  for (std::int64_t n = 0; n < std::ssize(global.rows); ++n) {
    const std::int64_t row = global.rows[static_cast<std::size_t>(n)];
    const float gate = gates[static_cast<std::size_t>(row)];
    for (std::int64_t head = 0; head < out.dim(1); ++head) {
      const float* other = global.out.at(n, head);
      const float factor = gate * inverse_rms(other, head_dim);
      float* mixed = out.at(row, head);
      for (std::int64_t k = 0; k < head_dim; ++k) {
        mixed[k] = (1.0f - gate) * mixed[k] + factor * weight_of(norms.global, k) * other[k];
      }
      lse(row, head) = global.lse(n, head);
    }
  }
}

}  // namespace ringmark::kernels
