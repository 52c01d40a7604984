#include "kernels/reference/logo.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/fuse_branches.h"

namespace ringmark::kernels::reference {
namespace {

// Sink logits come last, behind the fusion.
Layer local_branch(const Layer& layer) {
  Layer local = layer;
  local.problem.sink_logits.clear();
  return local;
}

Layer global_branch(const Layer& layer, const LogoWeights& weights) {
  Layer global = layer;
  global.policy = {layer.problem.tokens, 0, 0, Scorer::kNone};
  const auto width = static_cast<std::size_t>(layer.problem.heads * layer.problem.head_dim);
  for (std::size_t n = 0; n < global.q.size(); ++n) {
    if (!weights.global_scale.empty()) global.q[n] *= weights.global_scale[n % width];
    if (!weights.global_offset.empty()) global.q[n] += weights.global_offset[n % width];
  }
  return global;
}

void normalise(std::vector<double>& rows, const std::vector<double>& weights, std::size_t head_dim) {
  for (auto row = rows.begin(); row != rows.end(); row += static_cast<std::ptrdiff_t>(head_dim)) {
    const double squares = std::inner_product(row, row + static_cast<std::ptrdiff_t>(head_dim), row, 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(head_dim) + kBranchNormEpsilon);
    for (std::size_t k = 0; k < head_dim; ++k)
      row[static_cast<std::ptrdiff_t>(k)] *= (weights.empty() ? 1.0 : weights[k]) / rms;
  }
}

}  // namespace

Result attend_logo(const Layer& layer, std::span<const double> gates, double threshold, const LogoWeights& weights,
                   std::span<const TokenId> queries, int threads) {
  const auto heads = static_cast<std::size_t>(layer.problem.heads);
  const auto head_dim = static_cast<std::size_t>(layer.problem.head_dim);
  const Layer local = local_branch(layer);
  Result fused = attend(local, queries, threads);
  Result global = attend(global_branch(local, weights), queries, threads);
  normalise(fused.out, weights.local_norm, head_dim);
  normalise(global.out, weights.global_norm, head_dim);
  for (std::size_t row = 0; row < queries.size(); ++row) {
    const double gate = gates[static_cast<std::size_t>(queries[row].value())];
    if (!(gate > threshold)) continue;
    for (std::size_t i = row * heads * head_dim; i < (row + 1) * heads * head_dim; ++i) {
      fused.out[i] = (1.0 - gate) * fused.out[i] + gate * global.out[i];
    }
    std::copy_n(global.lse.begin() + static_cast<std::ptrdiff_t>(row * heads), heads,
                fused.lse.begin() + static_cast<std::ptrdiff_t>(row * heads));
  }
  for (std::size_t at = 0; !layer.problem.sink_logits.empty() && at < fused.lse.size(); ++at) {
    const double lse = fused.lse[at];
    const double sink = layer.problem.sink_logits[at % heads];
    const double top = std::max(lse, sink);
    if (std::isinf(top)) continue;
    fused.lse[at] = top + std::log(std::exp(lse - top) + std::exp(sink - top));
    for (std::size_t k = 0; k < head_dim; ++k) fused.out[at * head_dim + k] *= std::exp(lse - fused.lse[at]);
  }
  return fused;
}

}  // namespace ringmark::kernels::reference
