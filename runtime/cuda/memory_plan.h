// What a rank will hold on its GPU, before anything of it is allocated.
#pragma once

#include "kernels/cuda/layer.h"
#include "runtime/memory_plan.h"

namespace ringmark::runtime::cuda {

// `fetch_budget` bounds the received blocks, which are never more than the remote ones. `merge` is the strategy that
// will be used. Upper bounds: a union of choices may be smaller.
MemoryPlan plan_device_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                              bool has_retrieval_queries, Merge merge, kernels::cuda::Path path,
                              std::int64_t fetch_budget);

}  // namespace ringmark::runtime::cuda
