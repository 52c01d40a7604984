#include "cluster/scaling/failure_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "cluster/scaling/file_text.h"
#include "cluster/scaling/slurm_job.h"

namespace ringmark::cluster {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDetails = 24;
constexpr std::size_t kMaxLine = 400;

// What launchers write before the end of a process.
constexpr std::array<std::string_view, 4> kTelling = {
    "ringmark:", "srun: error:", "slurmstepd: error:", "exited on signal"};
constexpr std::array<std::string_view, 9> kDeaths = {"exited on signal",     ": Killed",     ": Aborted",
                                                     ": Segmentation fault", ": Bus error",  ": Out Of Memory",
                                                     "Node failure",         "NODE FAILURE", "lost communication"};

bool holds_one_of(const std::string& line, const auto& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view w) { return line.find(w) != std::string::npos; });
}

std::string printable(std::string line) {
  line.resize(std::min(line.size(), kMaxLine));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return line;
}

struct RankNote {
  fs::file_time_type written;
  Json json;
};

// error.RANK.json or signal.RANK.json of all ranks, the first to be written first.
std::vector<RankNote> notes_of(const std::string& folder, std::string_view prefix) {
  std::vector<RankNote> notes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".json")) continue;
    const Json json = Json::parse(file_text(entry.path().string()), nullptr, false);
    if (json.is_object()) notes.push_back({fs::last_write_time(entry.path(), error), json});
  }
  std::sort(notes.begin(), notes.end(), [](const RankNote& a, const RankNote& b) { return a.written < b.written; });
  return notes;
}

std::string error_line(const Json& note) {
  const std::string text = note.value("error", "");
  const std::string rank = fmt::format("rank {}", note.value("rank", -1));
  return text.starts_with("rank ") ? text : fmt::format("{}: {}", rank, text);
}

std::string signal_line(const Json& note) {
  return fmt::format("rank {} got {} at: {}", note.value("rank", -1), note.value("signal", "?"), note.value("at", "?"));
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t-") != std::string::npos) last = line;
  }
  return printable(last);
}

std::string how_it_ended(const ProgramEnd& end, double limit_seconds) {
  switch (end.how) {
    case ProgramEnd::How::kTimeout: return fmt::format("no end within {} s", limit_seconds);
    case ProgramEnd::How::kSignal:
      return fmt::format("the launcher died of signal {} ({})", end.code, strsignal(end.code));
    case ProgramEnd::How::kStopped: return "told to stop";
    case ProgramEnd::How::kExit: break;
  }
  return fmt::format("exit code {}", end.code);
}

std::string kind_of(const ProgramEnd& end) {
  switch (end.how) {
    case ProgramEnd::How::kTimeout: return "timeout";
    case ProgramEnd::How::kSignal: return "signal";
    case ProgramEnd::How::kStopped: return "interrupted";
    case ProgramEnd::How::kExit: break;
  }
  return "exit";
}

}  // namespace

std::vector<std::string> telling_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (holds_one_of(line, kTelling)) lines.push_back(printable(line));
  }
  return lines;
}

std::optional<std::string> line_of_death(const std::vector<std::string>& lines) {
  const auto found = std::find_if(lines.begin(), lines.end(), [](const auto& l) { return holds_one_of(l, kDeaths); });
  if (found == lines.end()) return std::nullopt;
  return *found;
}

PointFailure failure_cause(const ProgramEnd& end, const std::string& folder, const std::vector<std::string>& hosts,
                           double limit_seconds) {
  PointFailure failure;
  failure.kind = kind_of(end);
  if (end.how == ProgramEnd::How::kExit) failure.exit_code = end.code;
  if (end.how == ProgramEnd::How::kSignal) failure.signal = end.code;

  const std::string said = fs::exists(folder + "/stderr.txt") ? file_text(folder + "/stderr.txt") : "";
  const std::vector<std::string> lines = telling_lines(said);
  const auto errors = notes_of(folder + "/log", "error.");
  const auto signals = notes_of(folder + "/log", "signal.");
  std::string nodes;
  for (const SlurmNode& node : slurm_nodes(hosts)) {
    if (!node.usable()) nodes += fmt::format("; node {} is {}: {}", node.name, node.state, node.reason);
  }

  const auto death = line_of_death(lines);
  std::string cause = how_it_ended(end, limit_seconds);
  if (end.how == ProgramEnd::How::kTimeout) {
    // The deaths in stderr are then our own doing.
    if (!errors.empty())
      cause += "; " + error_line(errors.front().json);
    else if (!signals.empty())
      cause += "; " + signal_line(signals.front().json);
  } else if (death) {
    cause = *death;  // before what peers say of it
  } else if (!errors.empty()) {
    cause = error_line(errors.front().json);
  } else if (!lines.empty()) {
    cause = lines.front();
  } else if (!said.empty()) {
    cause += ": " + last_line(said);
  }
  failure.text = printable(cause) + nodes;

  for (const RankNote& note : errors) failure.details.push_back(printable(error_line(note.json)));
  for (const RankNote& note : signals) failure.details.push_back(printable(signal_line(note.json)));
  failure.details.insert(failure.details.end(), lines.begin(), lines.end());
  if (!nodes.empty()) failure.details.push_back(nodes.substr(2));
  if (failure.details.size() > kMaxDetails) failure.details.resize(kMaxDetails);
  return failure;
}

}  // namespace ringmark::cluster
