// What one rank did when, from the Chrome trace of a run (docs/report.md, "Trace and memory plan").
#pragma once

#include <string>
#include <vector>

namespace ringmark::cluster {

struct TimelineSpan {
  std::string stage;
  std::string lane;
  double start = 0;  // seconds since the rank's first span that is not of `load`
  double seconds = 0;
};

// Spans of `rank` without `load` and `write`, ascending in time. Neighbours of one stage with less than a thousandth
// of the whole between them are one, so that a figure stays small. Throws Error(kBadInput) naming `path` when the text
// is no trace; empty when the trace has nothing of the rank.
std::vector<TimelineSpan> parse_timeline(const std::string& text, const std::string& path, int rank);

}  // namespace ringmark::cluster
