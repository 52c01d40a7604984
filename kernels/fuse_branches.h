// LoGo's fusion of two branches (arXiv 2608.29539): every row has a local output, some have a global one too. Both are
// normalised per head, so that they compete on one scale, and mixed by the gate of the token:
//
//     norm(x) = x / sqrt(mean_d x^2 + 1e-6) * weight        o = norm_L(local), or (1 - g) norm_L(local) + g
//     norm_G(global)
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace ringmark::kernels {

inline constexpr double kBranchNormEpsilon = 1e-6;

// Weights by component of a head, [d] each; empty: all 1.
struct BranchNorms {
  std::span<const float> local = {};
  std::span<const float> global = {};
};

// What the selected rows have of the global branch.
struct GlobalRows {
  std::span<const std::int64_t> rows;  // which rows they are, ascending
  TensorView<const float, 3> out;      // [selected, H, d]
  TensorView<const float, 2> lse;      // [selected, H]
};

// out [rows, H, d] fp32 and lse [rows, H] come as those of the local branch and become the result; the lse of a
// selected row is that of the global branch. gates [rows] in (0, 1). A row without keys, out = 0, stays 0.
void fuse_branches(TensorView<float, 3> out, TensorView<float, 2> lse, const GlobalRows& global,
                   std::span<const float> gates, const BranchNorms& norms, int threads);

}  // namespace ringmark::kernels
