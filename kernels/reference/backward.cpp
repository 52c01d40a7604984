#include "kernels/reference/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ringmark::kernels::reference {
namespace {

using partition::SequenceGrid;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, std::int64_t count) { return std::inner_product(a, a + count, b, 0.0); }

void add(double factor, const double* vector, std::int64_t count, double* into) {
  for (std::int64_t x = 0; x < count; ++x) into[x] += factor * vector[x];
}

// The softmax of one query over some keys, and what it gives.
struct Part {
  std::vector<TokenId> keys;
  std::vector<double> weights;  // pi_j
  std::vector<double> out;      // sum of pi_j v_j
  double lse = kMinusInfinity;
};

// Of one chunk and query head: dL/dk'_c over a (the A_c of the formulas) and dL/db'_c.
struct LandmarkGradient {
  std::vector<double> key;
  double bias = 0.0;
};

// All that belongs to one kv head; no other adds to the same gradients.
class HeadBackward {
 public:
  HeadBackward(const Layer& layer, const SequenceGrid& grid, const Selection& selection,
               std::span<const double> out_gradient, std::int64_t kv_head, Gradients& gradients)
      : layer_(layer),
        problem_(layer.problem),
        d_(layer.problem.head_dim),
        hils_(layer.policy.scorer == Scorer::kHils),
        grid_(grid),
        selection_(selection),
        out_gradient_(out_gradient),
        kv_head_(kv_head),
        gradients_(gradients) {}

  void run() {
    const std::int64_t group = problem_.group();
    for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) {
      landmarks_.assign(static_cast<std::size_t>(grid_.chunk_count()), {});
      sums_.assign(landmarks_.size(), {});
      for (std::int64_t i = 0; i < problem_.tokens; ++i) add_row(TokenId(i), head);
      for (std::size_t c = 0; c < sums_.size(); ++c) {
        if (!sums_[c].key.empty()) through_landmark(ChunkId(static_cast<std::int64_t>(c)), head);
      }
    }
  }

 private:
  std::size_t at(TokenId token, std::int64_t head, std::int64_t heads) const {
    return static_cast<std::size_t>((token.value() * heads + head) * d_);
  }
  const double* query(TokenId i, std::int64_t h) const { return layer_.q.data() + at(i, h, problem_.heads); }
  const double* scoring_query(TokenId i, std::int64_t h) const {
    return (hils_ ? layer_.retrieval_q : layer_.q).data() + at(i, h, problem_.heads);
  }
  double* scoring_gradient(TokenId i, std::int64_t h) const {
    return (hils_ ? gradients_.retrieval_q : gradients_.q).data() + at(i, h, problem_.heads);
  }
  const double* key(TokenId j) const { return layer_.k.data() + at(j, kv_head_, problem_.kv_heads); }
  const double* value(TokenId j) const { return layer_.v.data() + at(j, kv_head_, problem_.kv_heads); }

  const Landmark& landmark_of_chunk(ChunkId chunk, std::int64_t head) {
    Landmark& landmark = landmarks_[static_cast<std::size_t>(chunk.value())];
    if (landmark.key.empty()) landmark = landmark_of(layer_, grid_, chunk, head);
    return landmark;
  }

  Part attend(TokenId i, std::int64_t head, std::vector<TokenId> keys) const {
    Part part{std::move(keys), {}, std::vector<double>(static_cast<std::size_t>(d_), 0.0)};
    double top = kMinusInfinity;
    for (const TokenId j : part.keys) {
      part.weights.push_back(problem_.scale * dot(query(i, head), key(j), d_));
      top = std::max(top, part.weights.back());
    }
    double sum = 0.0;
    for (double& weight : part.weights) sum += weight = std::exp(weight - top);
    if (sum > 0.0) part.lse = top + std::log(sum);
    for (std::size_t n = 0; n < part.keys.size(); ++n) {
      part.weights[n] /= sum;
      add(part.weights[n], value(part.keys[n]), d_, part.out.data());
    }
    return part;
  }

  std::vector<TokenId> keys_in(Range<TokenId> range) const {
    std::vector<TokenId> keys;
    for (TokenId j = range.begin; j < range.end; ++j) {
      if (grid_.is_key(j)) keys.push_back(j);
    }
    return keys;
  }

  void add_row(TokenId i, std::int64_t head) {
    std::vector<TokenId> nearby = keys_in(grid_.sinks_of(i));
    const std::vector<TokenId> window = keys_in(grid_.window_of(i));
    nearby.insert(nearby.end(), window.begin(), window.end());
    std::vector<Part> parts = {attend(i, head, std::move(nearby))};
    std::vector<double> logits = {parts[0].lse};
    const auto chosen = selection_.chosen(i.value(), kv_head_);
    for (const std::int32_t c : chosen) {
      const Landmark& landmark = landmark_of_chunk(ChunkId(c), head);
      parts.push_back(attend(i, head, keys_in(grid_.keys_of(ChunkId(c)))));
      logits.push_back(problem_.scale * dot(scoring_query(i, head), landmark.key.data(), d_) + landmark.bias);
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    if (top == kMinusInfinity) return;
    double sum = 0.0;
    for (const double logit : logits) sum += std::exp(logit - top);
    const double* g = out_gradient_.data() + at(i, head, problem_.heads);
    std::vector<double> weights, deltas;
    double delta = 0.0;  // Delta_i
    for (std::size_t n = 0; n < parts.size(); ++n) {
      weights.push_back(std::exp(logits[n] - top) / sum);
      deltas.push_back(dot(g, parts[n].out.data(), d_));
      delta += weights[n] * deltas[n];
    }
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const double logit_gradient = weights[n] * (deltas[n] - delta);  // dlambda_i, ds_hat_ic
      // The window's logit is the lse of its keys, so what reaches it goes on to them.
      through_part(i, head, parts[n], weights[n], deltas[n], n == 0 ? logit_gradient : 0.0);
      if (n > 0) through_score(i, head, ChunkId(chosen[n - 1]), logit_gradient);
    }
  }

  void through_part(TokenId i, std::int64_t head, const Part& part, double weight, double delta, double lse_gradient) {
    const double* g = out_gradient_.data() + at(i, head, problem_.heads);
    for (std::size_t n = 0; n < part.keys.size(); ++n) {
      const TokenId j = part.keys[n];
      const double score_gradient =
          part.weights[n] * (weight * (dot(g, value(j), d_) - delta) + lse_gradient);  // ds_ij
      add(weight * part.weights[n], g, d_, gradients_.v.data() + at(j, kv_head_, problem_.kv_heads));
      add(problem_.scale * score_gradient, key(j), d_, gradients_.q.data() + at(i, head, problem_.heads));
      add(problem_.scale * score_gradient, query(i, head), d_,
          gradients_.k.data() + at(j, kv_head_, problem_.kv_heads));
    }
  }

  void through_score(TokenId i, std::int64_t head, ChunkId chunk, double gradient) {
    LandmarkGradient& sum = sums_[static_cast<std::size_t>(chunk.value())];
    sum.key.resize(static_cast<std::size_t>(d_), 0.0);
    add(gradient, scoring_query(i, head), d_, sum.key.data());
    sum.bias += gradient;
    add(problem_.scale * gradient, landmark_of_chunk(chunk, head).key.data(), d_, scoring_gradient(i, head));
  }

  // Through k'_c and b'_c to the keys and, hils, to the landmark query.
  void through_landmark(ChunkId chunk, std::int64_t head) {
    const LandmarkGradient& sum = sums_[static_cast<std::size_t>(chunk.value())];
    const Landmark& of = landmark_of_chunk(chunk, head);
    const std::vector<TokenId> keys = keys_in(grid_.keys_of(chunk));
    const TokenId slot = grid_.landmark_slot(chunk);
    std::vector<double> log_p(keys.size(), -std::log(static_cast<double>(keys.size())));
    if (hils_) {
      double top = kMinusInfinity;
      for (std::size_t n = 0; n < keys.size(); ++n) {
        log_p[n] = problem_.scale * dot(scoring_query(slot, head), key(keys[n]), d_);
        top = std::max(top, log_p[n]);
      }
      double mass = 0.0;
      for (const double z : log_p) mass += std::exp(z - top);
      for (double& z : log_p) z -= top + std::log(mass);
    }
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const double p = std::exp(log_p[n]);
      double* into = gradients_.k.data() + at(keys[n], kv_head_, problem_.kv_heads);
      add(p * problem_.scale, sum.key.data(), d_, into);
      if (!hils_ || p == 0.0) continue;
      const double along =
          problem_.scale * (dot(key(keys[n]), sum.key.data(), d_) - dot(of.key.data(), sum.key.data(), d_));
      const double logit_gradient = p * (along - sum.bias * (log_p[n] + of.bias));  // dz_j
      add(problem_.scale * logit_gradient, scoring_query(slot, head), d_, into);
      add(problem_.scale * logit_gradient, key(keys[n]), d_, scoring_gradient(slot, head));
    }
  }

  const Layer& layer_;
  const AttentionProblem& problem_;
  std::int64_t d_;
  bool hils_;
  const SequenceGrid& grid_;
  const Selection& selection_;
  std::span<const double> out_gradient_;
  std::int64_t kv_head_;
  Gradients& gradients_;
  std::vector<Landmark> landmarks_;     // of the head at hand, by chunk; empty until needed
  std::vector<LandmarkGradient> sums_;  // of the head at hand, by chunk; empty where nothing chose it
};

}  // namespace

Gradients backward(const Layer& layer, const Selection& selection, std::span<const double> out_gradient, int threads) {
  const SequenceGrid grid(layer.problem, layer.policy);
  Gradients gradients;
  for (auto* const queries : {&gradients.q, &gradients.retrieval_q}) queries->assign(layer.q.size(), 0.0);
  for (auto* const keys : {&gradients.k, &gradients.v}) keys->assign(layer.k.size(), 0.0);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t kv_head = 0; kv_head < layer.problem.kv_heads; ++kv_head) {
    HeadBackward(layer, grid, selection, out_gradient, kv_head, gradients).run();
  }
  return gradients;
}

}  // namespace ringmark::kernels::reference
