// The log of a rank: one event a line, as JSON or as text, in a file of its own or on stderr.
//
// A JSON line has ts (UTC, ISO 8601 with microseconds), level, rank, host, pid and event, then what belongs to the
// event. A rank that is killed may leave its last line torn; the next run that logs there begins a new one.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cluster/options/telemetry_options.h"

namespace spdlog {
class logger;
}

namespace ringmark::cluster {

// In the order in which they were given.
using EventFields = nlohmann::ordered_json;

struct LogTarget {
  LogFormat format = LogFormat::kJson;
  LogLevel level = LogLevel::kInfo;  // and above
  std::string path;                  // empty: stderr
  int rank = 0;
  std::string host;
};

class EventLog {
 public:
  // Throws Error(kBadInput) when the file cannot be opened for appending.
  explicit EventLog(const LogTarget& target);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // For who would have to gather fields that nobody wants.
  bool takes(LogLevel level) const;
  // From any thread. `fields` is an object. Lines of info and above are with the kernel when this returns.
  void write(LogLevel level, std::string_view event, const EventFields& fields);
  void flush();

 private:
  LogTarget target_;
  std::unique_ptr<spdlog::logger> logger_;
};

// "log.3.jsonl" of rank 3, or "log.3.txt".
std::string log_name(LogFormat format, int rank);

}  // namespace ringmark::cluster
