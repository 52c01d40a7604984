#include "cluster/telemetry/event_log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr const char* kJsonPattern = R"({"ts":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l",%v})";
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%fZ %l %v";

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

// The last line of a log whose writer was killed.
bool ends_torn(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

spdlog::sink_ptr open_sink(const std::string& path) {
  if (path.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  const bool torn = ends_torn(path);
  std::ofstream file(path, std::ios::app);  // spdlog would make a folder that is missing
  if (!file) fail_bad_input(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  if (torn) file << '\n' << std::flush;
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
  } catch (const spdlog::spdlog_ex& error) {
    fail_bad_input(fmt::format("{}: cannot be written: {}", path, error.what()));
  }
}

// Without the braces, which the pattern has.
std::string inside(const EventFields& object) {
  const std::string text = object.dump(-1, ' ', false, EventFields::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

std::string words(const EventFields& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    const bool is_word =
        value.is_string() && value.get_ref<const std::string&>().find_first_of(" \"\n\\") == std::string::npos;
    text += fmt::format(
        " {}={}", key,
        is_word ? value.get<std::string>() : value.dump(-1, ' ', false, EventFields::error_handler_t::replace));
  }
  return text;
}

}  // namespace

EventLog::EventLog(const LogTarget& target) : target_(target) {
  logger_ = std::make_unique<spdlog::logger>("ringmark", open_sink(target.path));
  logger_->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      target.format == LogFormat::kJson ? kJsonPattern : kTextPattern, spdlog::pattern_time_type::utc));
  logger_->set_level(spdlog_level(target.level));
  logger_->flush_on(spdlog::level::info);
}

EventLog::~EventLog() { logger_->flush(); }

bool EventLog::takes(LogLevel level) const { return logger_->should_log(spdlog_level(level)); }

void EventLog::write(LogLevel level, std::string_view event, const EventFields& fields) {
  if (!takes(level)) return;
  std::string text;
  if (target_.format == LogFormat::kJson) {
    EventFields line = {{"rank", target_.rank}, {"host", target_.host}, {"pid", getpid()}, {"event", event}};
    line.update(fields);
    text = inside(line);
  } else {
    text = fmt::format("rank {} @ {}: {}{}", target_.rank, target_.host, event, words(fields));
  }
  logger_->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

void EventLog::flush() { logger_->flush(); }

std::string log_name(LogFormat format, int rank) {
  return fmt::format("log.{}.{}", rank, format == LogFormat::kJson ? "jsonl" : "txt");
}

}  // namespace ringmark::cluster
