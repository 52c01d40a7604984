#include "cluster/scaling/statistics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ringmark::cluster {

double quantile(std::vector<double> values, double q) {
  require(!values.empty(), "quantiles are of at least one value");
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

Spread spread_of(const std::vector<double>& values) {
  return {quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0), quantile(values, 1)};
}

double strong_efficiency(double seconds0, int nodes0, double seconds, int nodes) {
  return seconds0 * nodes0 / (seconds * nodes);
}

double weak_efficiency(double seconds0, double seconds) { return seconds0 / seconds; }

double causal_pairs(std::int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return n * (n + 1) / 2;
}

double weak_work_efficiency(double seconds0, int nodes0, std::int64_t tokens0, double seconds, int nodes,
                            std::int64_t tokens) {
  return seconds0 * causal_pairs(tokens) * nodes0 / (seconds * causal_pairs(tokens0) * nodes);
}

}  // namespace ringmark::cluster
