// What is linked with SimGrid: a module that replay() loads when it needs it, so that no other command, and no rank of
// a job, brings SimGrid and its libraries along.
#pragma once

#include <vector>

#include "cluster/simulation/replay.h"

namespace ringmark::cluster {

inline constexpr const char* kSimgridModule = "libringmark_simgrid.so";
inline constexpr const char* kSimgridFunction = "ringmark_simulate";

// Fills `times`, [ranks]. Once a process: SimGrid keeps one simulation in it.
using SimgridFunction = void(const Topology& topology, const std::vector<RankSchedule>& schedules, bool aggregated,
                             std::vector<RankTimes>& times);

}  // namespace ringmark::cluster

extern "C" ringmark::cluster::SimgridFunction ringmark_simulate;
