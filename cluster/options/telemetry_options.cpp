#include "cluster/options/telemetry_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr double kMaxHangSeconds = 7 * 24 * 3600;
constexpr std::int64_t kMaxLayer = 1 << 20;
constexpr std::array kFormats = {LogFormat::kText, LogFormat::kJson};
constexpr std::array kLevels = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError,
                                LogLevel::kOff};
constexpr auto kTextOf = [](auto choice) { return name_of(choice); };

}  // namespace

std::string_view name_of(LogFormat format) { return format == LogFormat::kText ? "text" : "json"; }

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: return "off";
  }
  return "off";
}

double TelemetryOptions::hang_threshold(double deadline_seconds) const {
  return hang_seconds.value_or(std::max(deadline_seconds / 4, kLeastHangSeconds));
}

void add_telemetry_options(OptionGroup& group) {
  group.add("log-format", "NAME", "text or json, of the log (default: json in --log-dir, else text, on stderr)")
      .add(
          "log-level", "NAME",
          "what is logged: debug, info, warning, error or off (default: info with --log-dir or --log-format, else off)")
      .add("trace", "FILE", "write what happened when, for chrome://tracing and Perfetto (default: none)")
      .add("metrics-file", "FILE",
           "keep metrics for the textfile collector of node_exporter, a file a rank: run.prom is run.rank0.prom, ... "
           "(default: none)")
      .add("hang-report", "SECONDS",
           fmt::format("report waits for other ranks from so many seconds on, 0 for never (default: a quarter of the "
                       "deadline, at least {:g})",
                       TelemetryOptions::kLeastHangSeconds))
      .add("layer", "N", "number of the layer in its model, for logs and errors (default: 0)");
}

TelemetryOptions read_telemetry_options(const OptionValues& values) {
  TelemetryOptions options;
  options.log_format = read_choice<LogFormat>(values, "log-format", kFormats, kTextOf);
  options.log_level = read_choice<LogLevel>(values, "log-level", kLevels, kTextOf);
  options.trace = read_text(values, "trace");
  options.metrics_file = read_text(values, "metrics-file");
  if (!options.metrics_file.empty() && !options.metrics_file.ends_with(".prom")) {
    fail_bad_input(fmt::format("{} = {} does not end in .prom: the textfile collector reads no other names",
                               find_value(values, "metrics-file")->origin, options.metrics_file));
  }
  options.hang_seconds = read_real(values, "hang-report", 0, kMaxHangSeconds);
  options.layer = read_count(values, "layer", 0, kMaxLayer).value_or(options.layer);
  for (const auto& [name, value] : values) options.given[name] = value.text;
  return options;
}

}  // namespace ringmark::cluster
