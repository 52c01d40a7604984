#include "cluster/telemetry/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cluster/options/text_file.h"

namespace ringmark::cluster {
namespace {

constexpr std::string_view kHostLane = "host";

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Threads of a process: the host's is 0, where arrows of reads begin and end.
class Lanes {
 public:
  std::size_t index_of(std::string_view lane) {
    const auto found = std::find(names_.begin(), names_.end(), lane);
    if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    names_.push_back(lane);
    return names_.size() - 1;
  }
  const std::vector<std::string_view>& names() const { return names_; }

 private:
  std::vector<std::string_view> names_ = {kHostLane};
};

std::string span_events(const runtime::Trace& trace, const ClockAlignment& clock, int rank, double origin_us,
                        Lanes& lanes) {
  std::string events;
  for (const runtime::TraceSpan& span : trace.spans()) {
    const double begin = clock.aligned(span.start_us) - origin_us;
    const double end = clock.aligned(span.start_us + span.length_us) - origin_us;
    events += fmt::format(R"({{"name":{},"cat":"stage","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}},)",
                          json_text(span.name), rank, lanes.index_of(span.lane), begin, std::max(0.0, end - begin));
    events += '\n';
  }
  return events;
}

std::string read_events(const runtime::Trace& trace, const ClockAlignment& clock, int rank, double origin_us) {
  std::string events;
  for (std::size_t n = 0; n < trace.reads().size(); ++n) {
    const runtime::TraceRead& read = trace.reads()[n];
    const double asked = clock.aligned(read.asked_us) - origin_us;
    const double arrived = clock.aligned(read.arrived_us) - origin_us;
    const std::string name =
        fmt::format(R"("name":"read from rank {}","cat":"read","id":"{}.{}")", read.owner, rank, n);
    events += fmt::format("{{{},\"ph\":\"b\",\"pid\":{},\"tid\":0,\"ts\":{:.3f},\"args\":{{\"bytes\":{}}}}},\n", name,
                          rank, asked, read.bytes);
    events += fmt::format("{{{},\"ph\":\"e\",\"pid\":{},\"tid\":0,\"ts\":{:.3f}}},\n", name, rank, arrived);
    const std::string arrow = fmt::format(R"("name":"blocks","cat":"fetch","id":"{}.{}")", rank, n);
    events += fmt::format("{{{},\"ph\":\"s\",\"pid\":{},\"tid\":0,\"ts\":{:.3f}}},\n", arrow, read.owner, asked);
    events +=
        fmt::format("{{{},\"ph\":\"f\",\"bp\":\"e\",\"pid\":{},\"tid\":0,\"ts\":{:.3f}}},\n", arrow, rank, arrived);
  }
  return events;
}

std::string name_events(const Lanes& lanes, int rank, const std::string& process) {
  std::string events = fmt::format("{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}},\n",
                                   rank, json_text(process));
  events += fmt::format(
      "{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"sort_index\":{0}}}}},\n", rank);
  for (std::size_t n = 0; n < lanes.names().size(); ++n) {
    events += fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}},\n",
                          rank, n, json_text(lanes.names()[n]));
  }
  return events;
}

// By rank.
nlohmann::ordered_json clock_fields(const ClockAlignment& clock, int rank) {
  return {{"rank", rank},
          {"offset_us_at_begin", clock.begin.offset_us},
          {"offset_us_at_end", clock.end.offset_us},
          {"drift_us_per_second", clock.drift_us_per_second()},
          {"uncertainty_us", clock.uncertainty_us()}};
}

}  // namespace

std::string trace_events(const runtime::Trace& trace, const ClockAlignment& clock, int rank, const std::string& process,
                         double origin_us) {
  Lanes lanes;
  const std::string spans = span_events(trace, clock, rank, origin_us, lanes);
  return name_events(lanes, rank, process) + spans + read_events(trace, clock, rank, origin_us);
}

double first_event_us(const runtime::Trace& trace, const ClockAlignment& clock) {
  double first = std::numeric_limits<double>::max();
  for (const runtime::TraceSpan& span : trace.spans()) first = std::min(first, clock.aligned(span.start_us));
  for (const runtime::TraceRead& read : trace.reads()) first = std::min(first, clock.aligned(read.asked_us));
  return first;
}

void write_trace(comm::Communicator& ranks, const runtime::Trace& trace, const ClockAlignment& clock,
                 const std::string& process, const std::string& version, const std::string& path) {
  std::array<double, 1> first = {-first_event_us(trace, clock)};
  ranks.all_reduce_max("gather the trace", first);
  const auto events =
      ranks.gather_texts("gather the trace", trace_events(trace, clock, ranks.rank(), process, -first[0]));
  const auto clocks = ranks.gather_texts("gather the trace", clock_fields(clock, ranks.rank()).dump());
  if (ranks.rank() != 0) return;
  nlohmann::ordered_json other = {{"program", "ringmark"}, {"version", version}, {"clock_of_rank", 0}};
  for (const std::string& text : clocks) other["clocks"].push_back(nlohmann::ordered_json::parse(text));
  std::string file = "{\"displayTimeUnit\":\"ms\",\n\"otherData\":" + other.dump() + ",\n\"traceEvents\":[\n";
  for (const std::string& text : events) file += text;
  file.erase(file.find_last_of(','));  // every rank has at least its name
  write_text_file(path, file + "\n]}\n");
}

}  // namespace ringmark::cluster
