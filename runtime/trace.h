// What happened when, for chrome://tracing and Perfetto. Times are microseconds of a clock that all processes of a host
// share (CLOCK_MONOTONIC), so that traces of its ranks lie side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::runtime {

struct TraceSpan {
  std::string name;
  std::string lane;  // "host", "gpu compute", "gpu fetch": one line each under the rank
  double start_us = 0.0;
  double length_us = 0.0;
};

class Trace {
 public:
  static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void add(std::string_view name, std::string_view lane, double start_us, double length_us) {
    spans_.push_back({std::string(name), std::string(lane), start_us, length_us});
  }
  const std::vector<TraceSpan>& spans() const { return spans_; }

 private:
  std::vector<TraceSpan> spans_;
};

// How long a span of `lane` ran while none of `by` did: what was not hidden. Spans of `lane` do not overlap each other.
double uncovered_us(const Trace& trace, std::string_view lane, std::string_view by);

// The spans of one rank as trace events, one a line, each line ending in a comma; "" when there are none.
std::string trace_events(const Trace& trace, int rank);
// A whole trace file from the events of all ranks.
std::string trace_file(const std::string& events);

}  // namespace ringmark::runtime
