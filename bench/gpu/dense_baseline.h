// Exact causal attention of a shape on this GPU: our own kernel, and cuDNN where the build has it.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"

namespace ringmark::bench {

struct DenseTime {
  std::string name;
  double milliseconds = 0.0;  // median
  double flops = 0.0;         // 4 d for every (query head, key) pair
  std::string note;           // what was scaled
};

// Long sequences are measured on one kv head and its group, and scaled.
std::vector<DenseTime> time_dense(const AttentionProblem& problem, int repeats);

}  // namespace ringmark::bench
