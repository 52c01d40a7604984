// Which blocks a rank fetches for the windows and sinks of its rows, and when.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/fetch_plan.h"

namespace ringmark::runtime {

struct WindowFetch {
  FetchPlan plan;
  std::int64_t group_rows = 1;  // the plan counts in groups of so many rows
};

// In one wave for all rows where that moves little, as it does where the chunks of a rank lie side by side; otherwise
// row by row. Throws Error(kBadInput) naming fetch-mib when the budget is too small for one row.
WindowFetch plan_window_fetch(const AttentionProblem& problem, const partition::SequenceGrid& grid,
                              const partition::Layout& layout, RankId rank, std::int64_t budget);

}  // namespace ringmark::runtime
