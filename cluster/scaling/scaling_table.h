// The rows of a study's tables: figures that need more than one point.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/scaling/study_results.h"

namespace ringmark::cluster {

struct ScalingRow {
  const PointResult* result = nullptr;
  // Relative to the point of the same mode and arm on base_nodes: N0 of the study, or the fewest that are done. Nothing
  // of points that are not done.
  int base_nodes = 0;
  std::optional<double> ideal_seconds;
  std::optional<double> speedup;          // T(N0) / T(N)
  std::optional<double> efficiency;       // strong or weak, by the mode of the point
  std::optional<double> work_efficiency;  // weak: pairs of query and key a second and node, over those at N0
};

// A row a point, in their order. Pointers are into `results`.
std::vector<ScalingRow> scaling_rows(const StudyResults& results);

// Two arms at the same mode, nodes and tokens, both done.
struct ArmComparison {
  const PointResult* arm = nullptr;
  const PointResult* ring = nullptr;
  double time_ratio() const { return arm->seconds().p50 / ring->seconds().p50; }
};

// Of every other arm with the arm `ring`.
std::vector<ArmComparison> compare_with_ring(const StudyResults& results);

std::string percent(double share);  // "87.5%"
std::string seconds_text(double seconds);

// With one heading line; cells of points that are not done hold their cause.
std::string markdown_table(const std::vector<ScalingRow>& rows);
// Fixed columns, numbers in full: an interface.
std::string csv_table(const std::vector<ScalingRow>& rows);
std::string result_lines(const std::vector<PointResult>& points);

}  // namespace ringmark::cluster
