#include "runtime/trace.h"

#include <fmt/format.h>

#include <algorithm>

namespace ringmark::runtime {

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
