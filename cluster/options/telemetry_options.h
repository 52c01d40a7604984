// What a run writes down about itself while it goes on: logs, trace, metrics, and reports of waits without end
// (docs/observability.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cluster/options/option_group.h"
#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

std::string_view name_of(LogFormat format);
std::string_view name_of(LogLevel level);

struct TelemetryOptions {
  std::optional<LogFormat> log_format;       // unset: json in --log-dir, text on stderr
  std::optional<LogLevel> log_level;         // unset: info in --log-dir or with a format, else off
  std::string trace;                         // empty: none
  std::string metrics_file;                  // empty: none
  std::optional<double> hang_seconds;        // unset: a quarter of the deadline, at least kLeastHangSeconds; 0: never
  std::int64_t layer = 0;                    // which one of a model this run computes
  std::map<std::string, std::string> given;  // options that were given, whichever way, with their texts

  static constexpr double kLeastHangSeconds = 5;
  // Seconds of a wait after which it is reported; 0: never.
  double hang_threshold(double deadline_seconds) const;
};

void add_telemetry_options(OptionGroup& group);
TelemetryOptions read_telemetry_options(const OptionValues& values);

}  // namespace ringmark::cluster
