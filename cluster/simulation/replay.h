// Runs the schedules of all ranks on a topology in SimGrid: flows share links by max-min fairness, ranks that share
// cores share them evenly.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cluster/simulation/schedule.h"
#include "cluster/simulation/topology.h"

namespace ringmark::cluster {

struct RankTimes {
  std::array<double, kStages> seconds = {};  // by stage
  double end = 0.0;                          // of its last step
  double at(Stage stage) const { return seconds[static_cast<std::size_t>(stage)]; }
};

struct Replay {
  std::vector<RankTimes> ranks;
  double seconds = 0.0;            // when the last rank ends
  std::int64_t inside_bytes = 0;   // received from ranks of the own node, all ranks
  std::int64_t outside_bytes = 0;  // from other nodes
  std::int64_t flows = 0;          // that the network was simulated with
  bool aggregated = false;
};

// False where the program was built without SimGrid, or its module was left behind.
bool can_replay();

// Flows are between a rank and each network card it reads from, while all schedules together have at most `flow_limit`
// of them. Above it a wave is one flow a rank and link class, no faster than the busiest of its owners serves all who
// read from it in their waves of the same number.
//
// In a process of its own, which ends with it: SimGrid keeps one simulation a process. Throws Error(kEnvironment)
// without SimGrid or when that process ends otherwise than with a result.
Replay replay(const Topology& topology, const std::vector<RankSchedule>& schedules, std::int64_t flow_limit);

}  // namespace ringmark::cluster
