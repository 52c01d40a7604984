#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/positions/alibi.h"
#include "kernels/reference/log_sum_exp.h"

namespace ringmark::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

using partition::SequenceGrid;

double dot(const double* a, const double* b, std::int64_t count) { return std::inner_product(a, a + count, b, 0.0); }

class Rows {
 public:
  Rows(const Layer& layer, const SequenceGrid& grid) : layer_(layer), grid_(grid) {
    if (layer.problem.alibi) slopes_ = alibi_slopes(layer.problem.heads);
  }

  const double* query(TokenId i, std::int64_t h) const { return row(layer_.q, i, h, layer_.problem.heads); }
  const double* retrieval(TokenId i, std::int64_t h) const {
    return row(layer_.policy.scorer == Scorer::kHils ? layer_.retrieval_q : layer_.q, i, h, layer_.problem.heads);
  }
  const double* landmark_query(ChunkId chunk, std::int64_t h) const {
    if (layer_.landmark_q.empty()) return retrieval(grid_.landmark_slot(chunk), h);
    return layer_.landmark_q.data() + (chunk.value() * layer_.problem.heads + h) * layer_.problem.head_dim;
  }
  const double* key(TokenId j, std::int64_t h) const { return row(layer_.k, j, kv_head(h), layer_.problem.kv_heads); }
  const double* value(TokenId j, std::int64_t h) const { return row(layer_.v, j, kv_head(h), layer_.problem.kv_heads); }

  double logit(TokenId i, TokenId j, std::int64_t h) const {
    const bool sink = !layer_.sink_q.empty() && grid_.sinks_of(i).contains(j);
    const double* q = sink ? row(layer_.sink_q, i, h, layer_.problem.heads) : query(i, h);
    const double product = layer_.problem.scale * dot(q, key(j, h), layer_.problem.head_dim);
    const double cap = layer_.problem.logit_cap;
    const double capped = cap > 0.0 ? cap * std::tanh(product / cap) : product;
    if (slopes_.empty()) return capped;
    return capped - double{slopes_[static_cast<std::size_t>(h)]} * static_cast<double>(i - j);
  }

  // Softmax attention of query i over the listed keys: adds weight * out, returns the lse.
  double attend(TokenId i, std::int64_t h, const std::vector<TokenId>& keys, std::vector<double>& out) const {
    std::vector<double> logits;
    for (const TokenId j : keys) logits.push_back(logit(i, j, h));
    const double lse = log_sum_exp(logits);
    out.assign(static_cast<std::size_t>(layer_.problem.head_dim), 0.0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const double weight = std::exp(logits[n] - lse);
      for (std::size_t x = 0; x < out.size(); ++x) out[x] += weight * value(keys[n], h)[x];
    }
    return lse;
  }

  std::vector<TokenId> window_keys(TokenId i) const {
    std::vector<TokenId> keys;
    for (const Range<TokenId>& range : {grid_.sinks_of(i), grid_.window_of(i)}) {
      for (TokenId j = range.begin; j < range.end; ++j) {
        if (grid_.is_key(j)) keys.push_back(j);
      }
    }
    return keys;
  }

  std::vector<TokenId> chunk_keys(ChunkId chunk) const {
    std::vector<TokenId> keys;
    const Range<TokenId> range = grid_.keys_of(chunk);
    for (TokenId j = range.begin; j < range.end; ++j) keys.push_back(j);
    return keys;
  }

 private:
  std::int64_t kv_head(std::int64_t h) const { return h / layer_.problem.group(); }
  const double* row(const std::vector<double>& tensor, TokenId token, std::int64_t head, std::int64_t heads) const {
    return tensor.data() + (token.value() * heads + head) * layer_.problem.head_dim;
  }

  const Layer& layer_;
  const SequenceGrid& grid_;
  std::vector<float> slopes_;  // by query head; empty without ALiBi
};

bool has_landmark_keys(Scorer scorer) {
  return scorer == Scorer::kHils || scorer == Scorer::kMean || scorer == Scorer::kLandmark;
}

// Landmarks of the whole sequence where the scorer has them, by chunk and query head.
std::vector<std::vector<Landmark>> all_landmarks(const Layer& layer, const SequenceGrid& grid) {
  std::vector<std::vector<Landmark>> landmarks(static_cast<std::size_t>(grid.chunk_count()));
  if (!has_landmark_keys(layer.policy.scorer)) return landmarks;
  for (std::int64_t c = 0; c < grid.chunk_count(); ++c) {
    if (!grid.has_landmark(ChunkId(c))) continue;
    for (std::int64_t h = 0; h < layer.problem.heads; ++h) {
      landmarks[static_cast<std::size_t>(c)].push_back(landmark_of(layer, grid, ChunkId(c), h));
    }
  }
  return landmarks;
}

class Attention {
 public:
  Attention(const Layer& layer, const SequenceGrid& grid)
      : layer_(layer), grid_(grid), rows_(layer, grid), landmarks_(all_landmarks(layer, grid)) {}

  void row(TokenId i, std::int64_t row, Result& result) const {
    const std::int64_t heads = layer_.problem.heads;
    const Range<ChunkId> eligible = grid_.eligible(i);
    std::vector<std::vector<double>> scores(static_cast<std::size_t>(heads));  // s_ihc, by eligible chunk
    std::vector<std::vector<double>> window_out(static_cast<std::size_t>(heads));
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      result.lse_window[static_cast<std::size_t>(row * heads + h)] =
          rows_.attend(i, h, rows_.window_keys(i), window_out[head]);
      for (ChunkId c = eligible.begin; c < eligible.end; ++c) scores[head].push_back(score(i, h, c));
    }
    for (std::int64_t chooser = 0; chooser < result.selection.choosers; ++chooser) {
      choose(row, chooser, eligible, scores, result);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      if (layer_.policy.fusion == Fusion::kUnion) {
        unite(i, row, h, result);
      } else {
        mix(i, row, h, eligible, scores[head], window_out[head], result);
      }
      absorb_sink(row, h, result);
    }
  }

 private:
  // Heads that share a list of chosen chunks.
  std::int64_t agreeing(const Result& result) const { return layer_.problem.heads / result.selection.choosers; }

  // A bound of the logits of the chunk's keys: every component at its better end.
  double quest_score(TokenId i, std::int64_t h, ChunkId chunk) const {
    const std::vector<TokenId> keys = rows_.chunk_keys(chunk);
    double bound = 0.0;
    for (std::int64_t x = 0; x < layer_.problem.head_dim; ++x) {
      double most = kMinusInfinity;
      for (const TokenId j : keys) most = std::max(most, rows_.query(i, h)[x] * rows_.key(j, h)[x]);
      bound += most;
    }
    return layer_.problem.scale * bound;
  }

  double score(TokenId i, std::int64_t h, ChunkId chunk) const {
    if (layer_.policy.scorer == Scorer::kQuest) return quest_score(i, h, chunk);
    if (layer_.policy.scorer == Scorer::kOracle) {
      std::vector<double> logits;
      for (const TokenId j : rows_.chunk_keys(chunk)) logits.push_back(rows_.logit(i, j, h));
      return log_sum_exp(logits);
    }
    const Landmark& landmark = landmarks_[static_cast<std::size_t>(chunk.value())][static_cast<std::size_t>(h)];
    return layer_.problem.scale * dot(rows_.retrieval(i, h), landmark.key.data(), layer_.problem.head_dim) +
           landmark.bias;
  }

  // Group rank: max over the chooser's heads of s - logaddexp(lse_window, lse over ALL eligible chunks). A landmark's
  // logit is compared with those of other landmarks alone.
  void choose(std::int64_t row, std::int64_t chooser, Range<ChunkId> eligible,
              const std::vector<std::vector<double>>& scores, Result& result) const {
    const std::int64_t group = agreeing(result);
    std::vector<double> rank(static_cast<std::size_t>(eligible.size()), kMinusInfinity);
    for (std::int64_t h = chooser * group; h < (chooser + 1) * group; ++h) {
      const auto& s = scores[static_cast<std::size_t>(h)];
      const double window = layer_.policy.scorer == Scorer::kLandmark
                                ? kMinusInfinity
                                : result.lse_window[static_cast<std::size_t>(row * layer_.problem.heads + h)];
      const double normaliser = log_sum_exp({window, log_sum_exp(s)});
      for (std::size_t c = 0; c < rank.size(); ++c) rank[c] = std::max(rank[c], s[c] - normaliser);
    }
    std::vector<std::size_t> order(rank.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // Score descending; the sort is stable, so equal scores stay in ascending order of chunk id.
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank[a] > rank[b]; });
    const auto topk = static_cast<std::size_t>(result.selection.topk);
    if (topk > 0 && order.size() > topk) {
      result.margin[static_cast<std::size_t>(row * result.selection.choosers + chooser)] =
          rank[order[topk - 1]] - rank[order[topk]];
    }
    order.resize(std::min(order.size(), topk));
    std::sort(order.begin(), order.end());
    const std::span<std::int32_t> slots = result.selection.slots(row, chooser);
    for (std::size_t n = 0; n < order.size(); ++n) {
      slots[n] = static_cast<std::int32_t>((eligible.begin + static_cast<std::int64_t>(order[n])).value());
    }
  }

  // Hierarchical softmax over the chosen chunks and the window.
  void mix(TokenId i, std::int64_t row, std::int64_t h, Range<ChunkId> eligible, const std::vector<double>& scores,
           const std::vector<double>& window_out, Result& result) const {
    const auto at = static_cast<std::size_t>(row * layer_.problem.heads + h);
    const auto chosen = result.selection.chosen(row, h / agreeing(result));
    std::vector<double> logits = {result.lse_window[at]};
    for (const std::int32_t c : chosen) logits.push_back(scores[static_cast<std::size_t>(ChunkId(c) - eligible.begin)]);
    const double lse = log_sum_exp(logits);
    double* out = result.out.data() + static_cast<std::ptrdiff_t>(at) * layer_.problem.head_dim;
    std::fill(out, out + layer_.problem.head_dim, 0.0);
    result.lse[at] = lse;
    if (lse == kMinusInfinity) return;
    std::vector<double> part = window_out;
    for (std::size_t n = 0; n < logits.size(); ++n) {
      if (n > 0) rows_.attend(i, h, rows_.chunk_keys(ChunkId(chosen[n - 1])), part);
      const double weight = std::exp(logits[n] - lse);
      for (std::size_t x = 0; x < part.size(); ++x) out[x] += weight * part[x];
    }
  }

  // One softmax over the keys of the chosen chunks and of the window.
  void unite(TokenId i, std::int64_t row, std::int64_t h, Result& result) const {
    const auto at = static_cast<std::size_t>(row * layer_.problem.heads + h);
    std::vector<TokenId> keys = rows_.window_keys(i);
    for (const std::int32_t chunk : result.selection.chosen(row, h / agreeing(result))) {
      const std::vector<TokenId> more = rows_.chunk_keys(ChunkId(chunk));
      keys.insert(keys.end(), more.begin(), more.end());
    }
    std::vector<double> out;
    result.lse[at] = rows_.attend(i, h, keys, out);
    std::copy(out.begin(), out.end(), result.out.begin() + static_cast<std::ptrdiff_t>(at) * layer_.problem.head_dim);
  }

  // One more logit, whose value is 0.
  void absorb_sink(std::int64_t row, std::int64_t h, Result& result) const {
    if (layer_.problem.sink_logits.empty()) return;
    const auto at = static_cast<std::size_t>(row * layer_.problem.heads + h);
    const double lse = log_sum_exp({result.lse[at], layer_.problem.sink_logits[static_cast<std::size_t>(h)]});
    const double share = lse == kMinusInfinity ? 0.0 : std::exp(result.lse[at] - lse);
    double* out = result.out.data() + static_cast<std::ptrdiff_t>(at) * layer_.problem.head_dim;
    for (std::int64_t x = 0; x < layer_.problem.head_dim; ++x) out[x] *= share;
    result.lse[at] = lse;
  }

  const Layer& layer_;
  const SequenceGrid& grid_;
  Rows rows_;
  std::vector<std::vector<Landmark>> landmarks_;
};

}  // namespace

std::vector<double> widen(const RowsView& rows) {
  const std::int64_t count = rows.rows * rows.heads * rows.head_dim;
  std::vector<float> narrow(static_cast<std::size_t>(count));
  ringmark::widen(rows.data, rows.dtype, count, narrow.data());
  return {narrow.begin(), narrow.end()};
}

Landmark landmark_of(const Layer& layer, const SequenceGrid& grid, ChunkId chunk, std::int64_t head) {
  const Rows rows(layer, grid);
  if (layer.policy.scorer == Scorer::kLandmark) {
    const double* key = rows.key(grid.landmark_slot(chunk), head);
    return {std::vector<double>(key, key + layer.problem.head_dim), 0.0};
  }
  const std::vector<TokenId> keys = rows.chunk_keys(chunk);
  std::vector<double> logits(keys.size(), 0.0);  // mean: a zero landmark query
  if (layer.policy.scorer == Scorer::kHils) {
    const double* landmark_query = rows.landmark_query(chunk, head);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      logits[n] = layer.problem.scale * dot(landmark_query, rows.key(keys[n], head), layer.problem.head_dim);
    }
  }
  const double lse = log_sum_exp(logits);
  Landmark landmark{std::vector<double>(static_cast<std::size_t>(layer.problem.head_dim), 0.0), 0.0};
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const double log_p = logits[n] - lse;
    const double p = std::exp(log_p);
    for (std::size_t x = 0; x < landmark.key.size(); ++x) landmark.key[x] += p * rows.key(keys[n], head)[x];
    if (p > 0.0) landmark.bias -= p * log_p;
  }
  return landmark;
}

Result attend(const Layer& layer, std::span<const TokenId> queries, int threads) {
  const SequenceGrid grid(layer.problem, layer.policy);
  const auto rows = static_cast<std::int64_t>(queries.size());
  const auto heads = static_cast<std::size_t>(rows * layer.problem.heads);
  Result result;
  result.out.resize(heads * static_cast<std::size_t>(layer.problem.head_dim));
  result.lse.resize(heads);
  result.lse_window.resize(heads);
  const std::int64_t choosers = layer.policy.choosers(layer.problem);
  result.selection = Selection(rows, choosers, layer.policy.selects() ? layer.policy.topk : 0);
  result.margin.assign(static_cast<std::size_t>(rows * choosers), -kMinusInfinity);
  const Attention attention(layer, grid);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
  for (std::int64_t row = 0; row < rows; ++row) attention.row(queries[static_cast<std::size_t>(row)], row, result);
  return result;
}

}  // namespace ringmark::kernels::reference
