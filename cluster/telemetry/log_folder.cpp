#include "cluster/telemetry/log_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <vector>

#include "cluster/telemetry/wait_graph.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

struct RankRecord {
  Json hang, error, signal;  // null: none
  std::string host;
  Json last_event;  // of the log
};

Json parse_or_null(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json();
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string text_of(const Json& json, const char* key) { return json.is_object() ? json.value(key, "") : ""; }

// Hosts of all ranks are in every job_start.
void read_log(const std::filesystem::path& path, RankRecord& record, std::map<int, std::string>& hosts) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json event = parse_or_null(line);
    if (event.is_null()) continue;
    record.host = text_of(event, "host");
    record.last_event = event;
    if (text_of(event, "event") != "job_start" || !event.contains("hosts")) continue;
    int rank = 0;
    for (const Json& host : event["hosts"]) hosts[rank++] = host.is_string() ? host.get<std::string>() : "";
  }
}

const std::regex kName(R"((log|hang|error|signal)\.(\d{1,9})\.jsonl?)");

std::map<int, RankRecord> read_records(const std::string& path) {
  std::map<int, RankRecord> records;
  std::map<int, std::string> hosts;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (!std::regex_match(name, match, kName)) continue;
    RankRecord& record = records[std::stoi(match[2])];
    if (match[1] == "log") read_log(entry.path(), record, hosts);
    if (match[1] == "hang") record.hang = parse_or_null(read_file(entry.path()));
    if (match[1] == "error") record.error = parse_or_null(read_file(entry.path()));
    if (match[1] == "signal") record.signal = parse_or_null(read_file(entry.path()));
  }
  for (const auto& [rank, host] : hosts) records[rank].host = host;
  return records;
}

// The wait that the rank told of: that of its error, else of the signal, else of the report that is not over.
Json wait_of(const RankRecord& record) {
  if (record.error.is_object() && record.error.contains("wait")) return record.error["wait"];
  if (record.signal.is_object() && record.signal.contains("wait")) return record.signal["wait"];
  if (record.hang.is_object() && !record.hang.value("over", false)) return record.hang;
  return {};
}

comm::Step step_of(const Json& json) {
  comm::Step step;
  step.layer = json.value("layer", std::int64_t{-1});
  step.stage = text_of(json, "stage");
  if (!json.contains("step") || !json["step"].is_object()) return step;
  step.unit = text_of(json["step"], "unit");
  step.number = json["step"].value("number", std::int64_t{-1});
  return step;
}

std::optional<RankWait> rank_wait(const RankRecord& record) {
  const Json json = wait_of(record);
  if (!json.is_object()) return std::nullopt;
  try {
    return RankWait{json.value("peers", std::vector<int>()), text_of(json, "wait"), step_of(json),
                    json.value("waited_seconds", 0.0)};
  } catch (const Json::exception&) {
    return std::nullopt;  // not what a rank writes
  }
}

std::string named(int rank, const std::map<int, RankRecord>& records) {
  const auto record = records.find(rank);
  const std::string host = record == records.end() ? "" : record->second.host;
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on {}", rank, host);
}

// Of what a rank that does not wait was doing last.
std::string last_known(const RankRecord& record) {
  if (record.signal.is_object()) return fmt::format("got {}", text_of(record.signal, "signal"));
  if (record.last_event.is_object()) return fmt::format("last logged {}", text_of(record.last_event, "event"));
  return "left nothing";
}

std::string answer_text(const WaitVerdict& verdict, const std::map<int, RankRecord>& records,
                        const std::map<int, RankWait>& waits) {
  if (verdict.roots.empty()) {
    if (verdict.not_told.empty()) return "nobody waits";
    return fmt::format("ranks {} wait inside MPI, which does not tell for whom", fmt::join(verdict.not_told, ", "));
  }
  std::vector<std::string> roots;
  for (const int root : verdict.roots) roots.push_back(named(root, records));
  if (verdict.is_circle) return fmt::format("{} wait for each other", fmt::join(roots, " and "));
  // Of those who wait directly for the first root, the one that waits longest stands nearest to the cause.
  const RankWait* nearest = nullptr;
  for (const int rank : verdict.waiting) {
    const RankWait& wait = waits.at(rank);
    const bool is_direct = std::find(wait.peers.begin(), wait.peers.end(), verdict.roots.front()) != wait.peers.end();
    if (is_direct && (nearest == nullptr || wait.seconds > nearest->seconds)) nearest = &wait;
  }
  const std::string place = nearest == nullptr ? "" : comm::words_of(nearest->step);
  const bool all = verdict.waiting.size() == waits.size();
  return fmt::format("{} {} what {} {} for{}", fmt::join(roots, " and "), roots.size() == 1 ? "is" : "are",
                     all ? std::string("everybody") : fmt::format("ranks {}", fmt::join(verdict.waiting, ", ")),
                     all ? "waits" : "wait", place.empty() ? "" : fmt::format(" ({})", place));
}

Json show_rank(int rank, const RankRecord& record, const std::optional<RankWait>& wait) {
  Json json = {{"rank", rank}, {"host", record.host}};
  std::string peers = "-", place = last_known(record), seconds = "-";
  if (wait) {
    peers = wait->peers.empty() ? "inside MPI" : fmt::format("{}", fmt::join(wait->peers, ","));
    place = fmt::format("{}{}", comm::words_of(wait->step), wait->step.stage.empty() ? "" : "; ") + wait->exchange;
    seconds = fmt::format("{:.1f}", wait->seconds);
    json["waits_for"] = wait->peers;
    json["waited_seconds"] = wait->seconds;
    json["wait"] = wait->exchange;
    json["at"] = comm::words_of(wait->step);
  } else {
    json["last"] = place;
  }
  if (record.error.is_object()) json["error"] = text_of(record.error, "error");
  if (record.signal.is_object()) json["signal"] = text_of(record.signal, "signal");
  fmt::print("{:<6}{:<14}{:<14}{:>9}  {}\n", rank, record.host.empty() ? "-" : record.host, peers, seconds, place);
  return json;
}

}  // namespace

bool is_log_folder(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (std::regex_match(entry.path().filename().string(), kName)) return true;
  }
  return false;
}

Json inspect_log_folder(const std::string& path) {
  const std::map<int, RankRecord> records = read_records(path);
  std::map<int, RankWait> waits;
  Json json = {{"folder", path}, {"ranks", Json::array()}};
  fmt::print("{:<6}{:<14}{:<14}{:>9}  {}\n", "rank", "host", "waits for", "seconds", "where");
  for (const auto& [rank, record] : records) {
    const std::optional<RankWait> wait = rank_wait(record);
    if (wait) waits[rank] = *wait;
    json["ranks"].push_back(show_rank(rank, record, wait));
  }
  for (const auto& [rank, record] : records) {
    if (record.error.is_object()) fmt::print("error of rank {}: {}\n", rank, text_of(record.error, "error"));
  }
  const WaitVerdict verdict = judge_waits(waits);
  const std::string answer = answer_text(verdict, records, waits);
  fmt::print("{}\n", answer);
  json["roots"] = verdict.roots;
  json["waiting"] = verdict.waiting;
  json["circle"] = verdict.is_circle;
  json["answer"] = answer;
  return json;
}

}  // namespace ringmark::cluster
