// The figures of a scaling study.
#pragma once

#include <cstdint>
#include <vector>

namespace ringmark::cluster {

struct Spread {
  double p50 = 0, p95 = 0, min = 0, max = 0;
};

// Quantile q in [0, 1] of at least one value, between neighbours in proportion (type 7 of Hyndman and Fan, The American
// Statistician 50, 1996, which numpy and R take by default).
double quantile(std::vector<double> values, double q);

Spread spread_of(const std::vector<double>& values);

// Strong scaling: the same work on nodes instead of nodes0. T(N0) N0 / (T(N) N), 1 when time falls in proportion.
double strong_efficiency(double seconds0, int nodes0, double seconds, int nodes);

// Weak scaling: work in proportion to nodes takes as long. T(N0) / T(N).
double weak_efficiency(double seconds0, double seconds);

// Pairs of query and visible key of causal attention over so many tokens: n (n + 1) / 2.
double causal_pairs(std::int64_t tokens);

// Weak scaling of dense attention, whose work grows with the square of the tokens: pairs a second and node, over the
// same at N0. T(N0) P(N) N0 / (T(N) P(N0) N).
double weak_work_efficiency(double seconds0, int nodes0, std::int64_t tokens0, double seconds, int nodes,
                            std::int64_t tokens);

}  // namespace ringmark::cluster
