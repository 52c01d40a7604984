#include "kernels/reference/softmax.h"

#include <cmath>
#include <numeric>

#include "kernels/reference/log_sum_exp.h"

namespace ringmark::kernels::reference {
namespace {

std::vector<double> row(const Layer& layer, const std::vector<double>& tensor, TokenId token, std::int64_t head,
                        std::int64_t heads) {
  const auto begin = tensor.begin() + (token.value() * heads + head) * layer.problem.head_dim;
  return {begin, begin + layer.problem.head_dim};
}

void add(const std::vector<double>& term, double weight, std::vector<double>& sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weight * term[i];
}

}  // namespace

KeyValue exact_key(const Layer& layer, TokenId token, std::int64_t kv_head) {
  const std::int64_t heads = layer.problem.kv_heads;
  return {row(layer, layer.k, token, kv_head, heads), row(layer, layer.v, token, kv_head, heads)};
}

KeyValue mean_key(const Layer& layer, const std::vector<TokenId>& tokens, std::int64_t kv_head) {
  const auto head_dim = static_cast<std::size_t>(layer.problem.head_dim);
  KeyValue mean{std::vector<double>(head_dim), std::vector<double>(head_dim)};
  for (const TokenId token : tokens) {
    const KeyValue term = exact_key(layer, token, kv_head);
    add(term.key, 1.0 / static_cast<double>(tokens.size()), mean.key);
    add(term.value, 1.0 / static_cast<double>(tokens.size()), mean.value);
  }
  return mean;
}

Softmax attend(const Layer& layer, TokenId query, std::int64_t head, const std::vector<KeyValue>& keys) {
  const std::vector<double> q = row(layer, layer.q, query, head, layer.problem.heads);
  Softmax softmax;
  softmax.out.assign(q.size(), 0.0);
  for (const KeyValue& key : keys) {
    const double z = layer.problem.scale * std::inner_product(q.begin(), q.end(), key.key.begin(), 0.0);
    const double cap = layer.problem.logit_cap;
    softmax.weights.push_back(cap > 0.0 ? cap * std::tanh(z / cap) : z);
  }
  if (keys.empty()) return softmax;
  softmax.lse = log_sum_exp(softmax.weights);
  for (std::size_t j = 0; j < keys.size(); ++j) {
    softmax.weights[j] = std::exp(softmax.weights[j] - softmax.lse);
    add(keys[j].value, softmax.weights[j], softmax.out);
  }
  return softmax;
}

}  // namespace ringmark::kernels::reference
