#include "kernels/reference/stingy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/reference/log_sum_exp.h"

namespace ringmark::kernels::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using partition::SequenceGrid;

class Turn {
 public:
  Turn(const PositionEncoding& encoding, std::int64_t head_dim)
      : encoding_(encoding), w_(inverse_frequencies(encoding, head_dim)), decay_(xpos_decay(2 * std::ssize(w_))) {}

  void operator()(Side side, std::int64_t position, double* head) const {
    const bool halves = encoding_.layout == PairLayout::kHalf;
    for (std::size_t j = 0; j < w_.size(); ++j) {
      double& a = head[halves ? j : 2 * j];
      double& b = head[halves ? j + w_.size() : 2 * j + 1];
      const double angle = static_cast<double>(position) * w_[j];
      const double gain = gain_of(side, position, j);
      const double turned = gain * (a * std::cos(angle) - b * std::sin(angle));
      b = gain * (a * std::sin(angle) + b * std::cos(angle));
      a = turned;
    }
  }

 private:
  double gain_of(Side side, std::int64_t position, std::size_t j) const {
    if (encoding_.kind != PositionKind::kXpos) return rotation_gain(encoding_);
    const double growth = decay_[j] * static_cast<double>(position - encoding_.center);
    return std::exp(side == Side::kQuery ? growth : -growth);
  }

  const PositionEncoding& encoding_;
  std::vector<double> w_;
  std::vector<double> decay_;
};

// What the cache holds for one query.
class Cache {
 public:
  Cache(const Layer& layer, const Turn& turn, const SequenceGrid& grid, TokenId query)
      : layer_(layer),
        turn_(turn),
        grid_(grid),
        document_(grid.document_of(query)),
        query_(query),
        slots_{(query - document_.tokens.begin) / layer.problem.chunk_size, layer.policy.topk,
               layer.problem.chunk_size} {
    for (std::int64_t h = 0; h < layer.problem.heads; ++h) {
      queries_.push_back(head_of(layer.q, query, h, layer.problem.heads));
      turn(Side::kQuery, query - document_.tokens.begin, queries_.back().data());
    }
  }

  void attend(std::int64_t row, Result& result) const {
    const AttentionProblem& problem = layer_.problem;
    std::vector<std::vector<double>> scores(static_cast<std::size_t>(problem.heads));
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (std::int64_t c = 0; c < slots_.chunks; ++c) {
        const TokenId landmark = grid_.landmark_slot(document_.chunks.begin + c);
        scores[static_cast<std::size_t>(h)].push_back(logit(h, landmark, slots_.landmark_position(c)));
      }
    }
    const std::int64_t agreeing = problem.heads / result.selection.choosers;
    for (std::int64_t chooser = 0; chooser < result.selection.choosers; ++chooser) {
      const std::span heads(scores.begin() + chooser * agreeing, static_cast<std::size_t>(agreeing));
      const std::vector<std::int64_t> chosen =
          choose(heads, result.margin[static_cast<std::size_t>(row * result.selection.choosers + chooser)]);
      std::transform(chosen.begin(), chosen.end(), result.selection.slots(row, chooser).begin(),
                     [&](std::int64_t c) { return static_cast<std::int32_t>((document_.chunks.begin + c).value()); });
      for (std::int64_t h = chooser * agreeing; h < (chooser + 1) * agreeing; ++h) {
        mix(row, h, chosen, scores[static_cast<std::size_t>(h)], result);
      }
    }
  }

 private:
  std::vector<double> head_of(const std::vector<double>& rows, TokenId token, std::int64_t head,
                              std::int64_t heads) const {
    const auto begin = rows.begin() + (token.value() * heads + head) * layer_.problem.head_dim;
    return {begin, begin + layer_.problem.head_dim};
  }

  // The query's head at its own position, the key wherever it is put.
  double logit(std::int64_t h, TokenId token, std::int64_t key_position) const {
    const AttentionProblem& problem = layer_.problem;
    const std::vector<double>& q = queries_[static_cast<std::size_t>(h)];
    std::vector<double> k = head_of(layer_.k, token, h / problem.group(), problem.kv_heads);
    turn_(Side::kKey, key_position, k.data());
    return problem.scale * std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
  }

  // Softmax over the landmarks before the largest of the heads: otherwise heads could not be compared.
  std::vector<std::int64_t> choose(std::span<const std::vector<double>> scores, double& margin) const {
    std::vector<double> rank(static_cast<std::size_t>(slots_.chunks), -kInfinity);
    for (const std::vector<double>& head : scores) {
      const double lse = log_sum_exp(head);
      for (std::size_t c = 0; c < rank.size(); ++c) rank[c] = std::max(rank[c], head[c] - lse);
    }
    std::vector<std::int64_t> order(rank.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto rank_of = [&](std::int64_t c) { return rank[static_cast<std::size_t>(c)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return rank_of(a) > rank_of(b); });
    const auto topk = static_cast<std::size_t>(slots_.topk);
    if (order.size() > topk) {
      margin = rank_of(order[topk - 1]) - rank_of(order[topk]);
      order.resize(topk);
    }
    std::sort(order.begin(), order.end());
    return order;
  }

  // Softmax over the keys of slots [begin, end) of the document, the first of them at `position`: adds weight * out.
  double gather(std::int64_t h, Range<TokenId> slots, std::int64_t position, std::vector<double>& out) const {
    std::vector<double> logits;
    std::vector<TokenId> keys;
    for (TokenId j = slots.begin; j < slots.end; ++j) {
      if (!grid_.is_key(j)) continue;
      keys.push_back(j);
      logits.push_back(logit(h, j, position + (j - slots.begin)));
    }
    const double lse = log_sum_exp(logits);
    out.assign(static_cast<std::size_t>(layer_.problem.head_dim), 0.0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const auto value = head_of(layer_.v, keys[n], h / layer_.problem.group(), layer_.problem.kv_heads);
      for (std::size_t x = 0; x < out.size(); ++x) out[x] += std::exp(logits[n] - lse) * value[x];
    }
    return lse;
  }

  // Group 0: the landmarks of the chosen chunks and the keys of the current one; then inside each chosen chunk.
  void mix(std::int64_t row, std::int64_t h, std::span<const std::int64_t> chosen, const std::vector<double>& scores,
           Result& result) const {
    const auto at = static_cast<std::size_t>(row * layer_.problem.heads + h);
    const TokenId own = grid_.tokens_of(grid_.chunk_of(query_)).begin;
    std::vector<std::vector<double>> parts(1);
    std::vector<double> logits = {gather(h, {own, query_ + 1}, own - document_.tokens.begin, parts[0])};
    const std::vector<std::int64_t> starts = slots_.starts_of(chosen);
    for (std::size_t r = 0; r < chosen.size(); ++r) {
      logits.push_back(scores[static_cast<std::size_t>(chosen[r])]);
      gather(h, grid_.tokens_of(document_.chunks.begin + chosen[r]), starts[r], parts.emplace_back());
    }
    result.lse_window[at] = logits[0];
    result.lse[at] = log_sum_exp(logits);
    double* out = result.out.data() + static_cast<std::ptrdiff_t>(at) * layer_.problem.head_dim;
    if (result.lse[at] == -kInfinity) return;
    for (std::size_t n = 0; n < logits.size(); ++n) {
      const double weight = std::exp(logits[n] - result.lse[at]);
      for (std::size_t x = 0; x < parts[n].size(); ++x) out[x] += weight * parts[n][x];
    }
  }

  const Layer& layer_;
  const Turn& turn_;
  const SequenceGrid& grid_;
  const partition::Document& document_;
  TokenId query_;
  ChunkCache slots_;
  std::vector<std::vector<double>> queries_;  // by head, rotated
};

}  // namespace

std::int64_t ChunkCache::landmark_position(std::int64_t c) const {
  const std::int64_t last = chunk_size - 1;
  if (chunks <= topk) return c * chunk_size + last;
  const std::int64_t prefix = chunks * chunk_size - (topk + 1) * chunk_size;
  const std::int64_t segment = c < chunks - topk ? 0 : c - (chunks - topk) + 1;
  return prefix + segment * chunk_size + last;
}

std::vector<std::int64_t> ChunkCache::starts_of(std::span<const std::int64_t> chosen) const {
  std::vector<std::int64_t> starts;
  if (chunks <= topk) {
    for (const std::int64_t c : chosen) starts.push_back(c * chunk_size);
    return starts;
  }
  const std::int64_t prefix = chunks * chunk_size - (topk + 1) * chunk_size;
  for (const std::int64_t c : chosen) {
    starts.push_back(prefix + std::ssize(starts) * chunk_size + (c >= chunks - topk ? chunk_size : 0));
  }
  return starts;
}

std::vector<double> rotated(const PositionEncoding& encoding, Side side, std::vector<double> rows, std::int64_t heads,
                            std::int64_t head_dim, std::span<const std::int64_t> positions) {
  const Turn turn(encoding, head_dim);
  double* head = rows.data();
  for (const std::int64_t position : positions) {
    for (std::int64_t h = 0; h < heads; ++h, head += head_dim) turn(side, position, head);
  }
  return rows;
}

Result attend_stingy(const Layer& layer, const PositionEncoding& encoding, std::span<const TokenId> queries,
                     int threads) {
  const SequenceGrid grid(layer.problem, layer.policy);
  const auto rows = static_cast<std::int64_t>(queries.size());
  const auto heads = static_cast<std::size_t>(rows * layer.problem.heads);
  const std::int64_t choosers = layer.policy.choosers(layer.problem);
  Result result;
  result.out.resize(heads * static_cast<std::size_t>(layer.problem.head_dim));
  result.lse.resize(heads);
  result.lse_window.resize(heads);
  result.selection = Selection(rows, choosers, layer.policy.topk);
  result.margin.assign(static_cast<std::size_t>(rows * choosers), kInfinity);
  const Turn turn(encoding, layer.problem.head_dim);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
  for (std::int64_t row = 0; row < rows; ++row) {
    Cache(layer, turn, grid, queries[static_cast<std::size_t>(row)]).attend(row, result);
  }
  return result;
}

}  // namespace ringmark::kernels::reference
