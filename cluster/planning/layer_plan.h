// What a prefill of one layer will take on many ranks, before anything runs: memory, bytes and seconds of each rank,
// the strategies and why. No rank, no GPU and no array of the layer exists here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/planning/cost_model.h"
#include "cluster/planning/expected_fetch.h"
#include "cluster/planning/machine_profile.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/dense/cost_model.h"
#include "runtime/fetch_strategy.h"
#include "runtime/memory_plan.h"
#include "runtime/merge_strategy.h"
#include "runtime/selector.h"

namespace ringmark::cluster {

struct PlanRequest {
  AttentionProblem problem;
  AttentionPolicy policy;
  MachineProfile profile;
  int nodes = 1;
  int ranks_per_node = 1;
  partition::Balance balance = partition::Balance::kZigzag;
  runtime::Merge merge = runtime::Merge::kAuto;
  runtime::Fetch fetch = runtime::Fetch::kAuto;
  std::int64_t memory_limit = 0;  // bytes a rank
  std::int64_t fetch_budget = 0;  // bytes a rank
  int threads = 1;
  QueryModel model;

  int ranks() const { return nodes * ranks_per_node; }
};

// Bytes that a rank receives, by where they come from: ranks of its node, and of others.
struct LinkBytes {
  double inside = 0;
  double outside = 0;
  double total() const { return inside + outside; }
};

// Seconds of communication, of which the rank waits for `exposed` and works through the rest.
struct Transfer {
  LinkBytes bytes;
  double seconds = 0;
  double exposed = 0;
};

struct RankPlan {
  RankId rank;
  runtime::ShardSize shard;
  RankWork work;
  RankSeconds compute;
  Transfer window;  // blocks left of the shard, and sinks: nothing hides them
  Transfer merge;   // landmark tables or visiting queries and lists: nothing hides them
  Transfer chosen;  // chosen blocks, and records under `scores`: all but the first wave hides behind attention
  double exposed() const { return window.exposed + merge.exposed + chosen.exposed; }
  double seconds() const { return compute.total() + exposed(); }
};

struct LayerPlan {
  double balance_max_over_mean = 1.0;
  std::vector<RankPlan> examined;  // all ranks; of very many the first, the middle, the last and the busiest
  bool all_examined = true;
  std::size_t slowest = 0;     // of `examined`
  runtime::MemoryPlan memory;  // of the rank with the most
  RankId memory_rank;
  std::string memory_of;  // whose plan it is: "host", or "GPU"
  runtime::MergeCost merge_cost;
  runtime::Merge merge = runtime::Merge::kLandmarks;
  std::string merge_why;
  runtime::FetchDecision fetch;  // of the slowest rank
  std::vector<runtime::dense::Cost> dense;
  double one_rank_seconds = 0;  // all of the layer on one rank of this machine, whether it fits or not
  double efficiency = 1.0;      // against that
  std::string bound_by;         // the largest part of the slowest rank's time

  const RankPlan& slowest_rank() const { return examined[slowest]; }
  bool fits(std::int64_t limit) const { return memory.total() <= limit; }
};

// Throws Error(kBadInput) when the profile has no link that the job needs, or the fetch budget has no room for what was
// asked.
LayerPlan plan_layer(const PlanRequest& request);

// The memory plan of a GPU; nothing in a build without CUDA.
std::optional<runtime::MemoryPlan> plan_gpu_memory(const PlanRequest& request, const runtime::ShardSize& shard,
                                                   runtime::Merge merge);

}  // namespace ringmark::cluster
