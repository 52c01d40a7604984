#include "kernels/reference/compressive.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/softmax.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::reference {
namespace {

using partition::SequenceGrid;

// What a query sees, by its position o in its document.
std::vector<KeyValue> keys_of(const Layer& layer, const CompressivePolicy& policy, const SequenceGrid& grid, TokenId i,
                              std::int64_t kv_head) {
  const TokenId start = grid.document_of(i).tokens.begin;
  const std::int64_t o = i - start;
  const std::int64_t memory = std::max<std::int64_t>(0, o / policy.segment * policy.segment - policy.memory);
  std::vector<KeyValue> keys;
  for (std::int64_t g = 0; (g + 1) * policy.rate <= memory; ++g) {
    if (g < memory / policy.rate - policy.slots) continue;
    std::vector<TokenId> group;
    for (std::int64_t at = g * policy.rate; at < (g + 1) * policy.rate; ++at) {
      if (grid.is_key(start + at)) group.push_back(start + at);
    }
    if (!group.empty()) keys.push_back(mean_key(layer, group, kv_head));
  }
  for (TokenId j = start + memory; j <= i; ++j) {
    if (grid.is_key(j)) keys.push_back(exact_key(layer, j, kv_head));
  }
  return keys;
}

// One more logit, whose value is 0.
void absorb(double logit, Softmax& softmax) {
  const double top = std::max(softmax.lse, logit);
  if (std::isinf(top)) return;
  const double lse = top + std::log(std::exp(softmax.lse - top) + std::exp(logit - top));
  for (double& component : softmax.out) component *= std::exp(softmax.lse - lse);
  softmax.lse = lse;
}

}  // namespace

Result attend_compressive(const Layer& layer, const CompressivePolicy& policy, std::span<const TokenId> queries,
                          int threads) {
  const AttentionProblem& problem = layer.problem;
  const SequenceGrid grid(problem, policy.exact_policy());
  const auto rows = static_cast<std::int64_t>(queries.size());
  const auto head_rows = static_cast<std::size_t>(rows * problem.heads);
  const auto head_dim = static_cast<std::size_t>(problem.head_dim);
  Result result;
  result.out.resize(head_rows * head_dim);
  result.lse.resize(head_rows);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t row = 0; row < rows; ++row) {
    const TokenId i = queries[static_cast<std::size_t>(row)];
    for (std::int64_t g = 0; g < problem.kv_heads; ++g) {
      const std::vector<KeyValue> keys = keys_of(layer, policy, grid, i, g);
      for (std::int64_t h = g * problem.group(); h < (g + 1) * problem.group(); ++h) {
        Softmax softmax = attend(layer, i, h, keys);
        if (!problem.sink_logits.empty()) absorb(problem.sink_logits[static_cast<std::size_t>(h)], softmax);
        const auto at = static_cast<std::size_t>(row * problem.heads + h);
        result.lse[at] = softmax.lse;
        std::copy(softmax.out.begin(), softmax.out.end(),
                  result.out.begin() + static_cast<std::ptrdiff_t>(at * head_dim));
      }
    }
  }
  return result;
}

}  // namespace ringmark::kernels::reference
