#include "cluster/simulation/study.h"

#include <algorithm>
#include <iterator>

namespace ringmark::cluster {

Point simulate_point(const LayerJob& job, Arm arm, const Topology& topology, const MachineProfile& profile,
                     std::int64_t flow_limit) {
  Point point;
  point.arm = arm;
  point.nodes = topology.nodes;
  point.ranks = topology.ranks();
  point.tokens = job.problem.tokens;
  point.memory_bytes = memory_of_rank(job, point.ranks, profile);
  const int together = topology.shared_cores > 0 ? topology.ranks() : topology.ranks_per_node;
  point.fits = point.memory_bytes <= profile.memory_of_rank(together);
  if (!point.fits) return point;
  const LayerSchedules schedules = schedule_layer(job, arm, topology, profile);
  const Replay replayed = replay(topology, schedules.ranks, flow_limit);
  point.seconds = replayed.seconds;
  for (const RankTimes& rank : replayed.ranks) {
    for (std::size_t stage = 0; stage < kStages; ++stage) point.mean[stage] += rank.seconds[stage] / point.ranks;
  }
  point.compute_seconds = schedules.compute_seconds;
  point.bytes_fetched = schedules.bytes_fetched;
  point.bytes_merged = schedules.bytes_merged;
  point.bytes_inside = replayed.inside_bytes;
  point.bytes_outside = replayed.outside_bytes;
  point.flows = replayed.flows;
  point.aggregated = replayed.aggregated;
  return point;
}

void rate(std::vector<Point>& points, Scaling mode) {
  const auto fitting = std::find_if(points.begin(), points.end(), [](const Point& point) { return point.fits; });
  if (fitting == points.end()) return;
  const Point base = *fitting;
  for (Point& point : points) {
    if (!point.fits) continue;
    const double ideal_share = mode == Scaling::kStrong ? static_cast<double>(base.ranks) / point.ranks : 1.0;
    point.efficiency = base.seconds * ideal_share / point.seconds;
    point.work_efficiency =
        (point.compute_seconds / point.ranks / point.seconds) / (base.compute_seconds / base.ranks / base.seconds);
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      point.lost[stage] = point.mean[stage] - base.mean[stage] * ideal_share;
    }
    const auto most = std::max_element(point.lost.begin(), point.lost.end());
    constexpr double kNothing = 1e-6;  // of the time
    if (*most > kNothing * point.seconds) point.held_by = static_cast<Stage>(most - point.lost.begin());
  }
}

const Point* first_below(const std::vector<Point>& points, double efficiency) {
  const auto found = std::find_if(points.begin(), points.end(),
                                  [&](const Point& point) { return point.fits && point.efficiency < efficiency; });
  return found == points.end() ? nullptr : &*found;
}

}  // namespace ringmark::cluster
