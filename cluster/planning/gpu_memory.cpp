#include "cluster/planning/layer_plan.h"
#include "runtime/cuda/memory_plan.h"

namespace ringmark::cluster {

// By the family of kernels that the layer would take on a GPU of compute capability 9.0.
std::optional<runtime::MemoryPlan> plan_gpu_memory(const PlanRequest& request, const runtime::ShardSize& shard,
                                                   runtime::Merge merge) {
  return runtime::cuda::plan_device_memory(request.problem, request.policy, shard, false, merge,
                                           kernels::cuda::Path::kHopper, request.fetch_budget);
}

}  // namespace ringmark::cluster
