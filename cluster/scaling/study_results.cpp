#include "cluster/scaling/study_results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "cluster/scaling/file_text.h"
#include "cluster/scaling/slurm_job.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_locked(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool locked = flock(descriptor, LOCK_EX | LOCK_NB) != 0;
  close(descriptor);
  return locked;
}

std::string point_text(const StudyPoint& point) {
  return fmt::format("point {} ({} {}, {} nodes, {} tokens)", point.index, name_of(point.mode), point.arm, point.nodes,
                     point.tokens);
}

// Of an attempt that has begun and left no result: somebody's job has ended around it.
void describe_interrupted(const std::string& started, PointResult& result) {
  const Json json = Json::parse(file_text(started), nullptr, false);
  if (!json.is_object()) return;
  result.began = json.value("began", "");
  result.environment = json.value("environment", Json::object());
  const Json variables = result.environment.value("variables", Json::object());
  const std::string job = variables.value("SLURM_JOB_ID", "");
  const std::string end = job.empty() ? "" : slurm_end_of(job);
  std::string& text = result.failure->text;
  text = fmt::format("attempt {} began at {} on {} and left no end", result.attempt, result.began,
                     result.environment.value("launched_from", "?"));
  if (!job.empty()) text += fmt::format("; Slurm job {}{}", job, end.empty() ? "" : " is " + end);
}

PointResult without_result(const std::string& folder, const Study& study, const StudyPoint& point) {
  PointResult result;
  result.point = point;
  result.ranks = point.nodes * study.ranks_per_node;
  result.environment = Json::object();
  result.failure = PointFailure{"not run", "not run", -1, std::nullopt, std::nullopt, {}};
  const std::string attempts = attempts_folder(folder, point.index);
  while (fs::exists(fmt::format("{}/{}", attempts, result.attempt + 1))) ++result.attempt;
  if (is_locked(lock_file(folder, point.index))) {
    result.failure->kind = result.failure->text = "running";
  } else if (result.attempt > 0) {
    result.failure->kind = "interrupted";
    result.failure->text = fmt::format("attempt {} has begun and left no end", result.attempt);
    const std::string started = fmt::format("{}/{}/started.json", attempts, result.attempt);
    if (fs::exists(started)) describe_interrupted(started, result);
  }
  return result;
}

void require_same_point(const StudyPoint& asked, const StudyPoint& found, const std::string& path) {
  const auto key = [](const StudyPoint& p) { return std::tie(p.index, p.mode, p.arm, p.nodes, p.tokens); };
  if (key(asked) == key(found)) return;
  fail_bad_input(fmt::format("{}: is {}, must be {}", path, point_text(found), point_text(asked)));
}

}  // namespace

bool StudyResults::all_good() const {
  return disagreements.empty() &&
         std::all_of(points.begin(), points.end(), [](const PointResult& r) { return r.done(); });
}

StudyResults read_results(const std::string& folder) {
  StudyResults results;
  results.folder = folder;
  results.study = read_study(folder);
  for (const StudyPoint& point : results.study.points()) {
    const std::string path = result_file(folder, point.index);
    if (!fs::exists(path)) {
      results.points.push_back(without_result(folder, results.study, point));
      continue;
    }
    results.points.push_back(parse_result(file_text(path), path));
    require_same_point(point, results.points.back().point, path);
  }
  results.disagreements = find_disagreements(results.points);
  return results;
}

std::vector<std::string> find_disagreements(const std::vector<PointResult>& points) {
  std::map<std::pair<std::string, std::int64_t>, const PointResult*> first;
  std::vector<std::string> disagreements;
  for (const PointResult& result : points) {
    if (!result.done()) continue;
    const PointResult& other = *first.try_emplace({result.point.arm, result.point.tokens}, &result).first->second;
    const RunRecord& a = other.runs.front();
    const RunRecord& b = result.runs.front();
    if (a.selection_digest != b.selection_digest) {
      disagreements.push_back(fmt::format("{} has selection digest {}, {} has {}", point_text(result.point),
                                          b.selection_digest, point_text(other.point), a.selection_digest));
    } else if (a.needles_recovered != b.needles_recovered) {
      disagreements.push_back(fmt::format("{} recovered {} needles, {} recovered {}", point_text(result.point),
                                          b.needles_recovered, point_text(other.point), a.needles_recovered));
    }
  }
  return disagreements;
}

std::vector<std::string> find_regressions(const std::vector<PointResult>& points,
                                          const std::vector<PointResult>& reference, double tolerance) {
  const auto key = [](const PointResult& r) {
    return std::make_tuple(r.point.mode, r.point.arm, r.point.nodes, r.ranks, r.point.tokens);
  };
  std::vector<std::string> regressions;
  bool compared = false;
  for (const PointResult& result : points) {
    const auto known = std::find_if(reference.begin(), reference.end(),
                                    [&](const PointResult& r) { return r.done() && key(r) == key(result); });
    if (!result.done() || known == reference.end()) continue;
    compared = true;
    const double before = known->seconds().p50;
    const double now = result.seconds().p50;
    if (now > before * (1 + tolerance)) {
      regressions.push_back(
          fmt::format("{} takes {:.4g} s, {:.1f}% more than the reference's {:.4g} s; the tolerance is {:g}%",
                      point_text(result.point), now, 100 * (now / before - 1), before, 100 * tolerance));
    }
    if (known->runs.front().selection_digest != result.runs.front().selection_digest) {
      regressions.push_back(fmt::format("{} has selection digest {}, the reference has {}", point_text(result.point),
                                        result.runs.front().selection_digest, known->runs.front().selection_digest));
    }
  }
  if (!compared) fail_bad_input("--reference: no done point of the study has a counterpart in it");
  return regressions;
}

std::vector<PointResult> read_result_lines(const std::string& path) {
  std::istringstream lines(file_text(path));
  std::vector<PointResult> results;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty()) results.push_back(parse_result(line, fmt::format("{}:{}", path, number)));
  }
  if (results.empty()) fail_bad_input(fmt::format("{}: holds no results", path));
  return results;
}

}  // namespace ringmark::cluster
