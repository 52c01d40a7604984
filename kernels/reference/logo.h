// LoGo in plain fp64 (kernels/fuse_branches.h): what the fast code is compared with.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

// All of them may be empty: weights 1, and queries of the global branch as they are.
struct LogoWeights {
  std::vector<double> local_norm, global_norm;      // [d]
  std::vector<double> global_scale, global_offset;  // [H, d] query of the global branch: scale q + offset
};

// Out and lse of the listed rows, in their order. The layer's policy is the window; gates [N]; rows whose gate is above
// the threshold attend to all keys too.
Result attend_logo(const Layer& layer, std::span<const double> gates, double threshold, const LogoWeights& weights,
                   std::span<const TokenId> queries, int threads);

}  // namespace ringmark::kernels::reference
