#include "runtime/trace.h"

#include <algorithm>
#include <iterator>

namespace ringmark::runtime {

double uncovered_us(const Trace& trace, std::string_view lane, std::string_view by) {
  std::vector<TraceSpan> covers;
  std::copy_if(trace.spans().begin(), trace.spans().end(), std::back_inserter(covers),
               [&](const TraceSpan& span) { return span.lane == by; });
  std::sort(covers.begin(), covers.end(),
            [](const TraceSpan& a, const TraceSpan& b) { return a.start_us < b.start_us; });
  double uncovered = 0.0;
  for (const TraceSpan& span : trace.spans()) {
    if (span.lane != lane) continue;
    double open = span.start_us;  // covered up to here
    const double end = span.start_us + span.length_us;
    for (const TraceSpan& cover : covers) {
      if (cover.start_us >= end) break;
      uncovered += std::max(0.0, cover.start_us - open);
      open = std::max(open, cover.start_us + cover.length_us);
    }
    uncovered += std::max(0.0, end - open);
  }
  return uncovered;
}

}  // namespace ringmark::runtime
