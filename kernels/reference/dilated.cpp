#include "kernels/reference/dilated.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/positions/alibi.h"

namespace ringmark::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Softmax sums of one row and head that have not been divided: over all keys of all pairs. Merging the pairs by their
// lse is one softmax in which a key counts once for each pair.
class Row {
 public:
  Row(const Layer& layer, const partition::SequenceGrid& grid, TokenId query, std::int64_t head)
      : layer_(layer), grid_(grid), query_(query), head_(head) {}

  void attend(const Dilation& dilation) {
    const TokenId start = grid_.document_of(query_).tokens.begin;
    const auto takes_part = [&](TokenId token) {
      return (token - start) % dilation.segment % dilation.rate == head_ % dilation.rate;
    };
    if (!takes_part(query_)) return;
    for (TokenId key = start; key <= query_; ++key) {
      const bool same_segment = (key - start) / dilation.segment == (query_ - start) / dilation.segment;
      if (!same_segment || !takes_part(key) || !grid_.is_key(key)) continue;
      keys_.push_back(key);
      logits_.push_back(logit(key));
      top_ = std::max(top_, logits_.back());
    }
  }

  void write(double* out, double& lse) const {
    const AttentionProblem& p = layer_.problem;
    std::fill_n(out, p.head_dim, 0.0);
    const double sink = p.sink_logits.empty() ? kMinusInfinity : p.sink_logits[static_cast<std::size_t>(head_)];
    const double top = std::max(top_, sink);
    lse = sink;
    if (keys_.empty()) return;
    double sum = std::exp(sink - top);
    for (const double of_key : logits_) sum += std::exp(of_key - top);
    lse = top + std::log(sum);
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const double weight = std::exp(logits_[n] - lse);
      const double* value = row(layer_.v, keys_[n], head_ / p.group(), p.kv_heads);
      for (std::int64_t x = 0; x < p.head_dim; ++x) out[x] += weight * value[x];
    }
  }

 private:
  double logit(TokenId key) const {
    const AttentionProblem& p = layer_.problem;
    const double* q = row(layer_.q, query_, head_, p.heads);
    const double* k = row(layer_.k, key, head_ / p.group(), p.kv_heads);
    const double product = p.scale * std::inner_product(q, q + p.head_dim, k, 0.0);
    const double capped = p.logit_cap > 0.0f ? p.logit_cap * std::tanh(product / p.logit_cap) : product;
    if (!p.alibi) return capped;
    const float slope = alibi_slopes(p.heads)[static_cast<std::size_t>(head_)];
    return capped - double{slope} * static_cast<double>(query_ - key);
  }
  const double* row(const std::vector<double>& tensor, TokenId token, std::int64_t head, std::int64_t heads) const {
    return tensor.data() + (token.value() * heads + head) * layer_.problem.head_dim;
  }

  const Layer& layer_;
  const partition::SequenceGrid& grid_;
  TokenId query_;
  std::int64_t head_;
  std::vector<TokenId> keys_;
  std::vector<double> logits_;
  double top_ = kMinusInfinity;
};

}  // namespace

Result attend_dilated(const Layer& layer, std::span<const Dilation> dilations, std::span<const TokenId> queries) {
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  const auto heads = static_cast<std::size_t>(layer.problem.heads);
  const auto head_dim = static_cast<std::size_t>(layer.problem.head_dim);
  Result result;
  result.out.resize(queries.size() * heads * head_dim);
  result.lse.resize(queries.size() * heads);
  for (std::size_t row = 0; row < queries.size(); ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      Row of(layer, grid, queries[row], static_cast<std::int64_t>(head));
      for (const Dilation& dilation : dilations) of.attend(dilation);
      of.write(result.out.data() + (row * heads + head) * head_dim, result.lse[row * heads + head]);
    }
  }
  return result;
}

}  // namespace ringmark::kernels::reference
