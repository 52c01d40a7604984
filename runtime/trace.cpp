#include "runtime/trace.h"

#include <fmt/format.h>

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

std::string trace_events(const Trace& trace, int rank) {
  std::vector<std::string_view> lanes;
  std::string events;
  for (const TraceSpan& span : trace.spans()) {
    auto lane = std::find(lanes.begin(), lanes.end(), span.lane);
    if (lane == lanes.end()) lane = lanes.insert(lanes.end(), span.lane);
    events += fmt::format(R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}},)", span.name, rank,
                          lane - lanes.begin(), span.start_us, span.length_us);
    events += '\n';
  }
  for (std::size_t n = 0; n < lanes.size(); ++n) {
    events += fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}},)", rank, n,
                          lanes[n]);
    events += '\n';
  }
  if (!lanes.empty()) {
    events += fmt::format(R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}},)", rank);
    events += '\n';
  }
  return events;
}

std::string trace_file(const std::string& events) {
  const std::size_t end = events.find_last_of(',');
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" +
         (end == std::string::npos ? std::string() : events.substr(0, end)) + "\n]}\n";
}

}  // namespace ringmark::runtime
