// --policy dense: exact causal attention instead of chosen chunks, and what goes with it.
#pragma once

#include <cstdint>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "runtime/dense/strategy.h"

namespace ringmark::cluster {

struct DenseOptions {
  runtime::dense::Strategy strategy = runtime::dense::Strategy::kAuto;
  std::int64_t ulysses_ranks = 0;  // 0: as many as divide ranks and kv heads
};

OptionGroup dense_options();

// Throws Error(kBadInput) for an option that does not go with the policy.
DenseOptions read_dense(const OptionValues& values);

}  // namespace ringmark::cluster
