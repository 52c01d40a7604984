// The real layer of tests/data and its float64 results.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/test_layer.h"

namespace ringmark::test {

struct GoldenLayer {
  TestLayer layer;
  std::vector<double> out;            // [N, H, d]
  std::vector<double> lse;            // [N, H]
  std::vector<double> lse_window;     // [N, H]
  std::vector<std::int32_t> chunks;   // [N, Hkv, K] ascending, -1 unused
  std::vector<double> margin;         // [N, Hkv] gap between the K-th and the next rank value
  std::vector<double> landmark_keys;  // [C, H, d]
  std::vector<double> landmark_bias;  // [C, H]
};

// The first `tokens` rows: the problem is causal, so they are a valid smaller problem.
GoldenLayer load_golden(std::int64_t tokens);

}  // namespace ringmark::test
