// What a rank will hold for dense attention, before anything of it is allocated.
#pragma once

#include "core/problem.h"
#include "runtime/dense/prefill.h"
#include "runtime/memory_plan.h"

namespace ringmark::runtime::dense {

MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options);

}  // namespace ringmark::runtime::dense
