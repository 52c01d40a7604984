#include "cluster/scaling/rank_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::json;

constexpr double kMicroseconds = 1e-6;
constexpr double kJoined = 1e-3;  // of the whole

std::vector<TimelineSpan> join_neighbours(const std::vector<TimelineSpan>& spans) {
  double end = 0;
  for (const TimelineSpan& span : spans) end = std::max(end, span.start + span.seconds);
  std::vector<TimelineSpan> joined;
  std::map<std::string, std::size_t> last;  // by lane
  for (const TimelineSpan& span : spans) {
    const auto found = last.find(span.lane);
    if (found != last.end()) {
      TimelineSpan& before = joined[found->second];
      const double gap = span.start - (before.start + before.seconds);
      if (before.stage == span.stage && gap < kJoined * end) {
        before.seconds = span.start + span.seconds - before.start;
        continue;
      }
    }
    last[span.lane] = joined.size();
    joined.push_back(span);
  }
  return joined;
}

}  // namespace

std::vector<TimelineSpan> parse_timeline(const std::string& text, const std::string& path, int rank) {
  try {
    const Json json = Json::parse(text);
    std::map<std::int64_t, std::string> lanes;
    std::vector<TimelineSpan> spans;
    for (const Json& event : json.at("traceEvents")) {
      if (!event.contains("pid") || event.at("pid") != rank) continue;
      if (event.at("ph") == "M" && event.at("name") == "thread_name") {
        lanes[event.at("tid").get<std::int64_t>()] = event.at("args").at("name");
      }
    }
    for (const Json& event : json.at("traceEvents")) {
      if (!event.contains("pid") || event.at("pid") != rank || event.at("ph") != "X") continue;
      const std::string stage = event.at("name");
      if (stage == "load" || stage == "write") continue;
      const auto lane = lanes.find(event.at("tid").get<std::int64_t>());
      spans.push_back({stage, lane == lanes.end() ? "host" : lane->second, event.at("ts").get<double>() * kMicroseconds,
                       event.at("dur").get<double>() * kMicroseconds});
    }
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    const double begin = spans.empty() ? 0 : spans.front().start;
    for (TimelineSpan& span : spans) span.start -= begin;
    return join_neighbours(spans);
  } catch (const Json::exception& error) {
    fail_bad_input(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace ringmark::cluster
