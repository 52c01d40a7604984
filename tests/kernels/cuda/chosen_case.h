// A random selection on top of a random attention problem, what weigh_chunks would have left of it, and the exact
// result.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/select_chunks.h"
#include "tests/kernels/cuda/tensor_case.h"
#include "tests/kernels/random_selection.h"

namespace ringmark::kernels::cuda {

// A selection with weights and window results of its own.
struct ChosenCase : AttentionCase {
  ChosenCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : AttentionCase(p, wanted, seed), selection(p.tokens, p.kv_heads, wanted.topk), window(p, p.tokens) {
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) choose(row, kv_head);
    }
    window.out = normal_floats(random, static_cast<std::int64_t>(window.out.size()));
    weigh();
  }

  void choose(std::int64_t row, std::int64_t kv_head) {
    const auto topk = static_cast<std::size_t>(selection.topk);
    choose_at_random(grid, random, 1, row, kv_head, selection, [&] { return topk - random() % (topk + 1) / 2; });
  }

  // What weigh_chunks leaves. Every seventh row has an empty window, whose output must not matter.
  void weigh() {
    const auto topk = static_cast<std::size_t>(selection.topk), d = static_cast<std::size_t>(problem.head_dim);
    const auto pairs = static_cast<std::size_t>(problem.tokens * problem.heads);
    scores.assign(pairs * topk, kMinusInfinity);
    window_weight.assign(pairs, 1.0f);
    std::normal_distribution<double> normal(0.0, 2.0);
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      const auto row = static_cast<std::int64_t>(pair) / problem.heads;
      const auto head = static_cast<std::int64_t>(pair) % problem.heads;
      const std::size_t chosen = selection.chosen(row, head / problem.group()).size();
      if (chosen == 0) continue;
      const double of_window = row % 7 == 0 ? 0.0 : std::exp(normal(random));
      std::vector<double> of_chunks(chosen);
      double total = of_window;
      for (double& weight : of_chunks) total += weight = std::exp(normal(random));
      for (std::size_t slot = 0; slot < chosen; ++slot) {
        scores[pair * topk + slot] = static_cast<float>(std::log(of_chunks[slot] / total));
      }
      window_weight[pair] = static_cast<float>(of_window / total);
      if (row % 7 == 0) std::fill_n(window.out.begin() + static_cast<std::int64_t>(pair * d), d, kNaN);
    }
  }

  Results exact_mixture() const {
    const Exact exact(*this);
    return exact_results(problem, [&](std::int64_t row, std::int64_t head) {
      const auto pair = static_cast<std::size_t>(row * problem.heads + head);
      const auto d = static_cast<std::size_t>(problem.head_dim), topk = static_cast<std::size_t>(selection.topk);
      ExactRow mixed{std::vector<double>(d, 0.0)};
      const double of_window = double{window_weight[pair]};
      for (std::size_t i = 0; i < d && of_window > 0.0; ++i)
        mixed.out[i] = of_window * double{window.out[pair * d + i]};
      std::size_t slot = pair * topk;
      for (const std::int32_t chunk : selection.chosen(row, head / problem.group())) {
        std::vector<TokenId> seen;
        const Range<TokenId> range = grid.keys_of(ChunkId(chunk));
        for (TokenId token = range.begin; token < range.end; ++token) seen.push_back(token);
        const ExactRow inside = exact.attend(row, head, seen);
        const double weight = std::exp(double{scores[slot++]});
        for (std::size_t i = 0; i < d; ++i) mixed.out[i] += weight * inside.out[i];
      }
      return mixed;
    });
  }

  Selection selection;
  Results window;
  std::vector<float> scores;
  std::vector<float> window_weight;
};

}  // namespace ringmark::kernels::cuda
