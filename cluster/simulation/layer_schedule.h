// The steps of a layer's prefill on each rank, planned by the runtime's own planners: layout, waves, merge, fetch
// decision. What is here is only the order of the stages, as runtime/prefill.cpp and runtime/cuda/prefill.cpp have it,
// and the seconds of computing, from the cost model.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cluster/planning/machine_profile.h"
#include "cluster/simulation/query_turns.h"
#include "cluster/simulation/schedule.h"
#include "cluster/simulation/topology.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/fetch_strategy.h"
#include "runtime/merge_strategy.h"

namespace ringmark::cluster {

// What is simulated: sparse prefill, and exact causal attention by two ways.
enum class Arm : std::uint8_t { kSparse, kRing, kAllGather };
inline constexpr std::array kArms = {Arm::kSparse, Arm::kRing, Arm::kAllGather};
constexpr std::string_view name_of(Arm arm) {
  switch (arm) {
    case Arm::kSparse: return "sparse";
    case Arm::kRing: return "ring";
    case Arm::kAllGather: return "all-gather";
  }
  return "?";
}

struct LayerJob {
  AttentionProblem problem;
  AttentionPolicy policy;
  partition::Balance balance = partition::Balance::kZigzag;
  QueryTurns turns;
  runtime::Fetch fetch = runtime::Fetch::kAuto;
  std::int64_t fetch_budget = std::int64_t{64} << 20;
  std::int64_t table_budget = std::int64_t{1} << 30;
};

struct LayerSchedules {
  std::vector<RankSchedule> ranks;
  double compute_seconds = 0.0;      // of all ranks that divides by ranks: what grows with rows, keys and blocks
  std::int64_t bytes_fetched = 0;    // blocks, all ranks
  std::int64_t bytes_merged = 0;     // landmark records, all ranks
  std::int64_t streaming_ranks = 0;  // whose planner streams whole shards
};

// On shared cores the replay slows computing down, elsewhere MachineProfile::slowdown does. Throws Error(kBadInput)
// where the runtime would merge by `scores`, which is not simulated.
LayerSchedules schedule_layer(const LayerJob& job, Arm arm, const Topology& topology, const MachineProfile& profile);

// Bytes that the rank with most rows holds.
std::int64_t memory_of_rank(const LayerJob& job, int ranks, const MachineProfile& profile);

}  // namespace ringmark::cluster
