// A scaling study without a cluster: points over node counts, their efficiency, and what holds it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/simulation/layer_schedule.h"
#include "cluster/simulation/replay.h"

namespace ringmark::cluster {

enum class Scaling : std::uint8_t {
  kStrong,  // the same tokens on every count
  kWeak,    // the same tokens a rank: --tokens are those of the smallest count
};
constexpr std::string_view name_of(Scaling mode) { return mode == Scaling::kStrong ? "strong" : "weak"; }

struct Point {
  Arm arm = Arm::kSparse;
  int nodes = 1;
  int ranks = 1;
  std::int64_t tokens = 0;
  std::int64_t memory_bytes = 0;  // of the largest rank
  bool fits = true;
  double seconds = 0.0;                   // when the last rank ends
  std::array<double, kStages> mean = {};  // of the ranks, by stage; they add up to `seconds` where all end together
  double compute_seconds = 0.0;           // LayerSchedules
  std::int64_t bytes_fetched = 0, bytes_merged = 0, bytes_inside = 0, bytes_outside = 0;
  std::int64_t flows = 0;
  bool aggregated = false;
  // Of the study, once all points are there.
  double efficiency = 0.0;
  double work_efficiency = 0.0;           // weak: time over work a rank, which grows with the tokens
  std::array<double, kStages> lost = {};  // seconds a rank beyond those of perfect scaling, by stage
  std::optional<Stage> held_by;           // the largest of them, where some time is lost

  double at(Stage stage) const { return mean[static_cast<std::size_t>(stage)]; }
  // Waiting for blocks and landmark records that no computing hides.
  double exposed() const { return at(Stage::kFetch) + at(Stage::kGather); }
};

// One point; where it does not fit memory nothing is simulated.
Point simulate_point(const LayerJob& job, Arm arm, const Topology& topology, const MachineProfile& profile,
                     std::int64_t flow_limit);

// Points of one arm and series of tokens, ascending: efficiencies against the first that fits. Strong: t0 R0 / (t R) of
// seconds t on R ranks. Weak: t0 / t.
void rate(std::vector<Point>& points, Scaling mode);

// The first point after the baseline whose efficiency is below.
const Point* first_below(const std::vector<Point>& points, double efficiency);

}  // namespace ringmark::cluster
