#include "kernels/reference/log_sum_exp.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringmark::kernels::reference {

double log_sum_exp(const std::vector<double>& terms) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  const double most = terms.empty() ? kMinusInfinity : *std::max_element(terms.begin(), terms.end());
  if (most == kMinusInfinity) return kMinusInfinity;
  double sum = 0.0;
  for (const double term : terms) sum += std::exp(term - most);
  return most + std::log(sum);
}

}  // namespace ringmark::kernels::reference
