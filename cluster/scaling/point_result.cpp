#include "cluster/scaling/point_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "ringmark-scaling/1";

double seconds_of(const RunRecord& run, const char* stage) {
  const auto found = run.seconds.find(stage);
  return found == run.seconds.end() ? 0 : found->second;
}

// All that ranks received: every field of bytes that is not a comparison.
std::int64_t moved_bytes(const Json& report) {
  std::int64_t bytes = 0;
  for (const auto& [field, value] : report.items()) {
    if (field.starts_with("bytes_") && field != "bytes_ring" && field != "bytes_ratio") {
      bytes += value.get<std::int64_t>();
    }
  }
  return bytes;
}

Json spread_json(const Spread& s) { return {{"p50", s.p50}, {"p95", s.p95}, {"min", s.min}, {"max", s.max}}; }

Json run_json(const RunRecord& run) {
  Json json = {{"attention_seconds", run.attention_seconds()},
               {"seconds", run.seconds},
               {"wall_seconds", run.wall_seconds},
               {"bytes_moved", run.bytes_moved},
               {"bytes_ring", run.bytes_ring},
               {"peak_memory_bytes", run.peak_memory_bytes},
               {"needles_planted", run.needles_planted},
               {"needles_recovered", run.needles_recovered}};
  if (!run.selection_digest.empty()) json["selection_digest"] = run.selection_digest;
  return json;
}

// What a run's record and the report of its prefill say by the same names.
RunRecord parse_common(const Json& json) {
  RunRecord run;
  run.seconds = json.at("seconds").get<std::map<std::string, double>>();
  run.bytes_ring = json.at("bytes_ring");
  run.peak_memory_bytes = json.at("peak_memory_bytes");
  run.needles_planted = json.at("needles_planted");
  run.needles_recovered = json.at("needles_recovered");
  run.selection_digest = json.value("selection_digest", "");
  return run;
}

RunRecord parse_run(const Json& json) {
  RunRecord run = parse_common(json);
  run.wall_seconds = json.at("wall_seconds");
  run.bytes_moved = json.at("bytes_moved");
  return run;
}

Json failure_json(const PointFailure& failure) {
  Json json = {{"kind", failure.kind}, {"text", failure.text}};
  if (failure.launch >= 0) json["launch"] = failure.launch;
  if (failure.exit_code) json["exit_code"] = *failure.exit_code;
  if (failure.signal) json["signal"] = *failure.signal;
  json["details"] = failure.details;
  return json;
}

PointFailure parse_failure(const Json& json) {
  PointFailure failure;
  failure.kind = json.at("kind");
  failure.text = json.at("text");
  failure.launch = json.value("launch", -1);
  if (json.contains("exit_code")) failure.exit_code = json.at("exit_code").get<int>();
  if (json.contains("signal")) failure.signal = json.at("signal").get<int>();
  failure.details = json.at("details").get<std::vector<std::string>>();
  return failure;
}

void require_schema(const Json& json, const std::string& origin) {
  if (json.at("schema") != kSchema) {
    fail_bad_input(fmt::format("{}: schema is {}, must be \"{}\"", origin, json.at("schema").dump(), kSchema));
  }
}

void require_figures(const PointResult& result, const std::string& origin) {
  if (!result.done()) return;
  if (result.runs.empty()) fail_bad_input(fmt::format("{}: a done point without runs", origin));
  for (const RunRecord& run : result.runs) {
    const double seconds = run.attention_seconds();
    if (!std::isfinite(seconds) || seconds <= 0) {
      fail_bad_input(fmt::format("{}: attention takes {} seconds, must be above 0", origin, seconds));
    }
  }
}

}  // namespace

double RunRecord::attention_seconds() const {
  return seconds_of(*this, "total") - seconds_of(*this, "load") - seconds_of(*this, "write");
}

RunRecord parse_report(const std::string& text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    RunRecord run = parse_common(json);
    run.bytes_moved = moved_bytes(json);
    return run;
  } catch (const Json::exception& error) {
    fail_bad_input(fmt::format("{}: {}", path, error.what()));
  }
}

Spread PointResult::seconds() const {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const RunRecord& run : runs) values.push_back(run.attention_seconds());
  return spread_of(values);
}

std::map<std::string, double> PointResult::stages() const {
  std::map<std::string, std::vector<double>> values;
  for (const RunRecord& run : runs) {
    for (const auto& [stage, seconds] : run.seconds) values[stage].push_back(seconds);
  }
  std::map<std::string, double> medians;
  for (const auto& [stage, seconds] : values) medians[stage] = quantile(seconds, 0.5);
  return medians;
}

Json result_json(const PointResult& result) {
  Json json = {{"schema", kSchema},
               {"point", result.point.index},
               {"mode", name_of(result.point.mode)},
               {"arm", result.point.arm},
               {"nodes", result.point.nodes},
               {"ranks", result.ranks},
               {"tokens", result.point.tokens},
               {"status", result.done() ? "done" : "failed"},
               {"attempt", result.attempt},
               {"began", result.began},
               {"ended", result.ended}};
  if (result.failure) json["failure"] = failure_json(*result.failure);
  if (result.done()) {
    json["attention_seconds"] = spread_json(result.seconds());
    json["stages"] = result.stages();
    json["bytes_moved"] = result.bytes_moved();
    json["bytes_ring"] = result.bytes_ring();
  }
  json["runs"] = Json::array();
  for (const RunRecord& run : result.runs) json["runs"].push_back(run_json(run));
  json["environment"] = result.environment;
  return json;
}

PointResult parse_result(const std::string& text, const std::string& origin) {
  try {
    const Json json = Json::parse(text);
    require_schema(json, origin);
    PointResult result;
    result.point.index = json.at("point");
    result.point.mode = json.at("mode") == "weak" ? ScalingMode::kWeak : ScalingMode::kStrong;
    result.point.arm = json.at("arm");
    result.point.nodes = json.at("nodes");
    result.point.tokens = json.at("tokens");
    result.ranks = json.at("ranks");
    result.attempt = json.at("attempt");
    result.began = json.at("began");
    result.ended = json.at("ended");
    for (const Json& run : json.at("runs")) result.runs.push_back(parse_run(run));
    if (json.at("status") == "failed") result.failure = parse_failure(json.at("failure"));
    result.environment = json.at("environment");
    require_figures(result, origin);
    return result;
  } catch (const Json::exception& error) {
    fail_bad_input(fmt::format("{}: {}", origin, error.what()));
  }
}

}  // namespace ringmark::cluster
