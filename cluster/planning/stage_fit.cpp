#include "cluster/planning/stage_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace ringmark::cluster {
namespace {

constexpr std::size_t kTerms = 3;  // fixed, row, unit
using Terms = std::array<double, kTerms>;

double term(const StageSample& sample, std::size_t which) {
  return which == 0 ? 1.0 : which == 1 ? sample.rows : sample.units;
}

double predicted(const Terms& terms, const StageSample& sample) {
  double seconds = 0;
  for (std::size_t i = 0; i < kTerms; ++i) seconds += terms[i] * term(sample, i);
  return seconds;
}

double squared_error(const Terms& terms, std::span<const StageSample> samples) {
  double sum = 0;
  for (const StageSample& sample : samples) sum += std::pow(predicted(terms, sample) / sample.seconds - 1.0, 2);
  return sum;
}

// Solves the normal equations of the terms in use by elimination with pivots; nothing where they do not tell the terms
// apart. Columns are scaled to length 1 first: flops and rows differ by many powers of ten.
std::optional<Terms> solve(std::span<const StageSample> samples, const std::vector<std::size_t>& used) {
  const std::size_t n = used.size();
  std::vector<double> length(n, 0.0);
  for (std::size_t a = 0; a < n; ++a) {
    for (const StageSample& s : samples) length[a] += std::pow(term(s, used[a]) / s.seconds, 2);
    length[a] = std::sqrt(length[a]);
    if (!(length[a] > 0)) return std::nullopt;
  }
  std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1, 0.0));
  for (const StageSample& s : samples) {
    for (std::size_t a = 0; a < n; ++a) {
      const double left = term(s, used[a]) / s.seconds / length[a];
      for (std::size_t b = 0; b < n; ++b) rows[a][b] += left * term(s, used[b]) / s.seconds / length[b];
      rows[a][n] += left;
    }
  }
  constexpr double kSmallestPivot = 1e-10;
  for (std::size_t at = 0; at < n; ++at) {
    std::size_t pivot = at;
    for (std::size_t r = at + 1; r < n; ++r) {
      if (std::abs(rows[r][at]) > std::abs(rows[pivot][at])) pivot = r;
    }
    if (std::abs(rows[pivot][at]) < kSmallestPivot) return std::nullopt;
    std::swap(rows[at], rows[pivot]);
    for (std::size_t r = 0; r < n; ++r) {
      if (r == at) continue;
      const double factor = rows[r][at] / rows[at][at];
      for (std::size_t c = at; c <= n; ++c) rows[r][c] -= factor * rows[at][c];
    }
  }
  Terms terms{};
  for (std::size_t a = 0; a < n; ++a) terms[used[a]] = rows[a][n] / rows[a][a] / length[a];
  return terms;
}

}  // namespace

// Of every choice of terms the best with no negative one: with three there are seven, so none is missed.
StageFit fit_stage(std::span<const StageSample> all) {
  std::vector<StageSample> samples(all.begin(), all.end());
  std::erase_if(samples, [](const StageSample& sample) { return !(sample.seconds > 0); });
  StageFit fit;
  if (samples.empty()) return fit;
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned choice = 1; choice < 1U << kTerms; ++choice) {
    std::vector<std::size_t> used;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if ((choice >> i & 1U) != 0) used.push_back(i);
    }
    if (used.size() > samples.size()) continue;
    const auto terms = solve(samples, used);
    if (!terms || std::any_of(terms->begin(), terms->end(), [](double x) { return x < 0; })) continue;
    if (const double error = squared_error(*terms, samples); error < least) {
      least = error;
      best = *terms;
    }
  }
  fit.rate = {best[0], best[1], best[2]};
  for (const StageSample& sample : samples) {
    const double error = std::abs(predicted(best, sample) / sample.seconds - 1.0);
    fit.mean_error += error / static_cast<double>(samples.size());
    fit.worst_error = std::max(fit.worst_error, error);
  }
  return fit;
}

}  // namespace ringmark::cluster
