#include "kernels/reference/nsa.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "kernels/reference/softmax.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels::reference {
namespace {

using partition::SequenceGrid;

class Nsa {
 public:
  Nsa(const Layer& layer, const NsaPolicy& policy)
      : layer_(layer), policy_(policy), grid_(layer.problem, policy.window_policy()) {}

  void row(TokenId i, std::int64_t row, std::span<const float> gates, Result& result) const {
    const AttentionProblem& problem = layer_.problem;
    for (std::int64_t g = 0; g < problem.kv_heads; ++g) {
      const std::vector<KeyValue> means = complete_means(i, g);
      std::vector<Softmax> compressed;
      std::vector<double> importance(means.size(), 0.0);
      for (std::int64_t h = g * problem.group(); h < (g + 1) * problem.group(); ++h) {
        compressed.push_back(attend(layer_, i, h, means));
        for (std::size_t c = 0; c < means.size(); ++c) importance[c] += compressed.back().weights[c];
      }
      const std::vector<ChunkId> chosen = choose(i, importance, result.margin[index(row * problem.kv_heads + g)]);
      for (std::size_t n = 0; n < chosen.size(); ++n) {
        result.selection.slots(row, g)[n] = static_cast<std::int32_t>(chosen[n].value());
      }
      const std::vector<KeyValue> selected = exact_keys(keys_of(chosen, i), g);
      const std::vector<KeyValue> window = exact_keys(window_tokens(i), g);
      for (std::int64_t h = g * problem.group(); h < (g + 1) * problem.group(); ++h) {
        const Softmax of_selected = attend(layer_, i, h, selected);
        const Softmax of_window = attend(layer_, i, h, window);
        const auto at = index(row * problem.heads + h);
        result.lse[at] = of_selected.lse;
        result.lse_window[at] = of_window.lse;
        const Softmax& of_compressed = compressed[index(h - g * problem.group())];
        for (std::size_t x = 0; x < of_window.out.size(); ++x) {
          result.out[at * of_window.out.size() + x] = gates[3 * at] * of_compressed.out[x] +
                                                      gates[3 * at + 1] * of_selected.out[x] +
                                                      gates[3 * at + 2] * of_window.out[x];
        }
      }
    }
  }

 private:
  static std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

  std::vector<TokenId> tokens_in(Range<TokenId> range) const {
    std::vector<TokenId> tokens;
    for (TokenId token = range.begin; token < range.end; ++token) {
      if (grid_.is_key(token)) tokens.push_back(token);
    }
    return tokens;
  }

  std::vector<TokenId> window_tokens(TokenId i) const {
    const TokenId start = grid_.document_of(i).tokens.begin;
    return tokens_in({std::max(start, i - policy_.window + 1), i + 1});
  }

  // The chunks of the document whose last slot is not behind the query.
  std::vector<KeyValue> complete_means(TokenId i, std::int64_t kv_head) const {
    std::vector<KeyValue> means;
    for (ChunkId c = grid_.document_of(i).chunks.begin; c <= grid_.chunk_of(i); ++c) {
      const Range<TokenId> slots = grid_.tokens_of(c);
      if (slots.size() < grid_.chunk_size() || slots.end - 1 > i) continue;
      means.push_back(mean_key(layer_, tokens_in(slots), kv_head));
    }
    return means;
  }

  // Ascending.
  std::vector<ChunkId> choose(TokenId i, const std::vector<double>& importance, double& margin) const {
    const ChunkId first = grid_.document_of(i).chunks.begin;
    const ChunkId own = grid_.chunk_of(i);
    std::set<ChunkId> taken = {first, own, std::max(first, own - 1)};
    std::vector<std::pair<double, ChunkId>> rest;
    for (std::size_t c = 0; c < importance.size(); ++c) {
      const ChunkId chunk = first + static_cast<std::int64_t>(c);
      if (!taken.contains(chunk)) rest.emplace_back(-importance[c], chunk);
    }
    std::sort(rest.begin(), rest.end());
    std::size_t next = 0;
    for (; next < rest.size() && std::ssize(taken) < policy_.topk; ++next) taken.insert(rest[next].second);
    margin = std::numeric_limits<double>::infinity();
    if (next > 0 && next < rest.size()) margin = rest[next].first - rest[next - 1].first;
    return {taken.begin(), taken.end()};
  }

  std::vector<TokenId> keys_of(const std::vector<ChunkId>& chunks, TokenId i) const {
    std::vector<TokenId> keys;
    for (const ChunkId chunk : chunks) {
      for (const TokenId token : tokens_in(grid_.tokens_of(chunk))) {
        if (token <= i) keys.push_back(token);
      }
    }
    return keys;
  }

  std::vector<KeyValue> exact_keys(const std::vector<TokenId>& tokens, std::int64_t kv_head) const {
    std::vector<KeyValue> keys;
    for (const TokenId token : tokens) keys.push_back(exact_key(layer_, token, kv_head));
    return keys;
  }

  const Layer& layer_;
  const NsaPolicy& policy_;
  SequenceGrid grid_;
};

}  // namespace

Result attend_nsa(const Layer& layer, const NsaPolicy& policy, std::span<const TokenId> queries,
                  std::span<const float> gates, int threads) {
  const AttentionProblem& problem = layer.problem;
  const Nsa nsa(layer, policy);
  const auto rows = static_cast<std::int64_t>(queries.size());
  const auto head_rows = static_cast<std::size_t>(rows * problem.heads);
  Result result;
  result.out.resize(head_rows * static_cast<std::size_t>(problem.head_dim));
  result.lse.resize(head_rows);
  result.lse_window.resize(head_rows);
  result.margin.resize(static_cast<std::size_t>(rows * problem.kv_heads));
  result.selection = Selection(rows, problem.kv_heads, policy.topk);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t row = 0; row < rows; ++row) {
    nsa.row(queries[static_cast<std::size_t>(row)], row, gates, result);
  }
  return result;
}

}  // namespace ringmark::kernels::reference
