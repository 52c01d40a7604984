// Everything known of a study, and whether its results agree with each other and with earlier ones.
#pragma once

#include <string>
#include <vector>

#include "cluster/scaling/point_result.h"
#include "cluster/scaling/study.h"

namespace ringmark::cluster {

struct StudyResults {
  std::string folder;
  Study study;
  // One a point, in their order. A point without a result is a failure of kind "not run", "running", or
  // "interrupted" where an attempt has begun and left no end.
  std::vector<PointResult> points;
  // Done points of one arm and one number of tokens that do not agree on the selection or the needles.
  std::vector<std::string> disagreements;

  bool all_good() const;
};

// Throws Error(kBadInput) for a file that is malformed, naming it.
StudyResults read_results(const std::string& folder);

std::vector<std::string> find_disagreements(const std::vector<PointResult>& points);

// A line for each done point that has a counterpart in `reference` (mode, arm, nodes, ranks, tokens) and is slower by
// more than `tolerance` (0.1: a tenth), or chose other chunks. Throws Error(kBadInput) where none has a counterpart.
std::vector<std::string> find_regressions(const std::vector<PointResult>& points,
                                          const std::vector<PointResult>& reference, double tolerance);

// Of a file with a result a line. Throws Error(kBadInput) naming file and line.
std::vector<PointResult> read_result_lines(const std::string& path);

}  // namespace ringmark::cluster
