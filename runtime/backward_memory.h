// What a rank will hold in a backward pass, before anything of it is allocated.
#pragma once

#include "core/problem.h"
#include "runtime/backward.h"
#include "runtime/memory_plan.h"

namespace ringmark::runtime {

// With what the forward left and the gradients, both of the rank's rows.
MemoryPlan plan_backward_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                                bool has_retrieval_queries, const BackwardOptions& options);

// The fp64 reference holds the whole layer and all gradients on every rank.
MemoryPlan plan_reference_backward_memory(const AttentionProblem& problem, const AttentionPolicy& policy,
                                          const ShardSize& shard);

}  // namespace ringmark::runtime
