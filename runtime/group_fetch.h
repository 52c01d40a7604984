// Which chosen blocks a rank fetches, and when, where the needs of its rows are known by groups of rows: as bits that
// the caller marks. Pure: it can be planned without ranks and memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/fetch_plan.h"
#include "runtime/fetch_strategy.h"

namespace ringmark::runtime {

struct GroupFetch {
  FetchDecision decision;
  FetchPlan plan;
  std::int64_t group_rows = 1;  // the plan counts in groups of so many rows, whose needs are known together
};

// The marks of all groups of so many rows, [groups][words]: bit chunk * kv_heads + kv_head of a group is set when one
// of its rows chose the block.
using MarkGroups = std::function<std::vector<std::uint32_t>(std::int64_t group_rows)>;

// 32-bit words of a group's marks.
std::int64_t words_of_marks(std::int64_t chunks, std::int64_t kv_heads);

// Plans by groups as long as a wave where the budget is large enough for everything, else of 1024 rows, and of fewer
// where it is too small for what such a group needs. Throws Error(kBadInput) naming fetch-mib when it is too small for
// one row.
GroupFetch plan_group_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                            std::int64_t chunks, std::int64_t rows, Fetch asked, std::int64_t budget,
                            const MarkGroups& mark);

}  // namespace ringmark::runtime
