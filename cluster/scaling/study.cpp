#include "cluster/scaling/study.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cluster/options/text_file.h"
#include "cluster/scaling/arm.h"
#include "cluster/scaling/file_text.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "ringmark-study/1";

ScalingMode mode_named(const std::string& name) {
  if (name == "strong") return ScalingMode::kStrong;
  if (name == "weak") return ScalingMode::kWeak;
  fail_bad_input(fmt::format("mode '{}' is neither strong nor weak", name));
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_environment(fmt::format("{}: cannot be made: {}", path, error.message()));
}

void require_equal(const Json& kept, const Json& asked, const std::string& path) {
  for (const auto& [field, value] : asked.items()) {
    if (field == "points" || (kept.contains(field) && kept[field] == value)) continue;
    fail_bad_input(
        fmt::format("{}: the study was begun with {} = {}, not {}; go on with --dir alone, or take another "
                    "folder",
                    path, field, kept.contains(field) ? kept[field].dump() : "nothing", value.dump()));
  }
}

}  // namespace

std::vector<StudyPoint> Study::points() const {
  std::vector<StudyPoint> all;
  for (const ScalingMode mode : modes) {
    for (const int count : nodes) {
      const std::int64_t length = mode == ScalingMode::kStrong ? tokens : tokens / first_nodes() * count;
      for (const std::string& arm : arms) all.push_back({static_cast<int>(all.size()), mode, arm, count, length});
    }
  }
  return all;
}

Json study_json(const Study& study) {
  Json json = {{"schema", kSchema},
               {"nodes", study.nodes},
               {"ranks_per_node", study.ranks_per_node},
               {"modes", Json::array()},
               {"tokens", study.tokens},
               {"arms", study.arms},
               {"repeats", study.repeats},
               {"warmups", study.warmups},
               {"traced", study.traced},
               {"launch_seconds", study.point_seconds},
               {"prefill", study.shared},
               {"points", Json::array()}};
  for (const ScalingMode mode : study.modes) json["modes"].push_back(name_of(mode));
  for (const StudyPoint& point : study.points()) {
    json["points"].push_back({{"mode", name_of(point.mode)},
                              {"arm", point.arm},
                              {"nodes", point.nodes},
                              {"ranks", point.nodes * study.ranks_per_node},
                              {"tokens", point.tokens}});
  }
  return json;
}

Study parse_study(const std::string& text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    if (json.at("schema") != kSchema) {
      fail_bad_input(fmt::format("{}: schema is {}, must be \"{}\"", path, json.at("schema").dump(), kSchema));
    }
    Study study;
    study.nodes = json.at("nodes").get<std::vector<int>>();
    study.ranks_per_node = json.at("ranks_per_node");
    for (const Json& mode : json.at("modes")) study.modes.push_back(mode_named(mode));
    study.tokens = json.at("tokens");
    study.arms = json.at("arms").get<std::vector<std::string>>();
    study.repeats = json.at("repeats");
    study.warmups = json.at("warmups");
    study.traced = json.at("traced");
    study.point_seconds = json.at("launch_seconds");
    study.shared = json.at("prefill").get<std::vector<std::string>>();
    for (const std::string& arm : study.arms) check_arm(arm);
    if (study.nodes.empty() || study.arms.empty() || study.modes.empty() || study.repeats < 1) {
      fail_bad_input(fmt::format("{}: no points", path));
    }
    return study;
  } catch (const Json::exception& error) {
    fail_bad_input(fmt::format("{}: {}", path, error.what()));
  }
}

std::string study_file(const std::string& folder) { return folder + "/study.json"; }

std::string result_file(const std::string& folder, int point) {
  return fmt::format("{}/points/{:05}.json", folder, point);
}

std::string lock_file(const std::string& folder, int point) {
  return fmt::format("{}/points/{:05}.lock", folder, point);
}

std::string attempts_folder(const std::string& folder, int point) {
  return fmt::format("{}/runs/{:05}", folder, point);
}

bool study_exists(const std::string& folder) { return std::filesystem::exists(study_file(folder)); }

Study read_study(const std::string& folder) {
  const std::string path = study_file(folder);
  if (!study_exists(folder)) fail_bad_input(fmt::format("{} is no study: there is no {}", folder, path));
  return parse_study(file_text(path), path);
}

void create_study(const std::string& folder, const Study& study) {
  make_folder(folder + "/points");
  make_folder(folder + "/runs");
  const std::string path = study_file(folder);
  if (!study_exists(folder)) {
    const std::string mine = fmt::format("{}.{}", path, getpid());
    write_text_file(mine, study_json(study).dump(2) + "\n");
    // A link, not a rename: of several tasks that begin at once the first wins, the others compare.
    const bool linked = link(mine.c_str(), path.c_str()) == 0;
    const int cause = errno;
    unlink(mine.c_str());
    if (!linked && cause != EEXIST) {
      fail_environment(fmt::format("{}: cannot write: {}", path, std::strerror(cause)));
    }
  }
  require_equal(study_json(read_study(folder)), study_json(study), path);
}

}  // namespace ringmark::cluster
