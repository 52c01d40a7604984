// Which blocks a rank fetches for a selection that stays on the device, and when.
#pragma once

#include <cstdint>

#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "runtime/cuda/workspace.h"
#include "runtime/fetch_plan.h"
#include "runtime/fetch_strategy.h"

namespace ringmark::runtime::cuda {

struct ChosenFetch {
  FetchDecision decision;
  FetchPlan plan;
  std::int64_t group_rows = 1;  // the plan counts in groups of so many rows, whose needs are known together
};

// Plans for workspace.selection, [rows, Hkv, K]: by groups as long as a wave where the budget is large enough for
// everything, else of 1024 rows, and of fewer where it is too small for what such a group needs. Throws
// Error(kBadInput) naming fetch-mib when it is too small for one row. Waits for the stream.
ChosenFetch plan_chosen_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                              const kernels::cuda::LayerShape& shape, std::int64_t rows, Fetch asked,
                              std::int64_t budget, Workspace& workspace);

}  // namespace ringmark::runtime::cuda
