#include "cluster/scaling/run_point.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "cluster/options/text_file.h"
#include "cluster/scaling/failure_cause.h"
#include "cluster/scaling/file_text.h"
#include "cluster/scaling/point_result.h"
#include "cluster/scaling/run_environment.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace fs = std::filesystem;

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

// Held by whoever runs the point; gone with its process.
class PointLock {
 public:
  explicit PointLock(const std::string& path) : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail_environment(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    close(descriptor_);
    fail_environment(fmt::format("{}: the point is being run by another process", path));
  }
  ~PointLock() { close(descriptor_); }
  PointLock(const PointLock&) = delete;
  PointLock& operator=(const PointLock&) = delete;

 private:
  int descriptor_;
};

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_environment(fmt::format("{}: cannot be made: {}", path, error.message()));
}

int next_attempt(const std::string& attempts) {
  int attempt = 1;
  while (fs::exists(fmt::format("{}/{}", attempts, attempt))) ++attempt;
  return attempt;
}

// What a run says that must not depend on anything but the input: "" when both agree.
std::string difference(const RunRecord& first, const RunRecord& other) {
  if (first.selection_digest != other.selection_digest) {
    return fmt::format("selection digest {} instead of {}", other.selection_digest, first.selection_digest);
  }
  if (first.needles_recovered != other.needles_recovered) {
    return fmt::format("{} needles recovered instead of {}", other.needles_recovered, first.needles_recovered);
  }
  return "";
}

class PointRun {
 public:
  PointRun(const std::string& folder, const Study& study, const StudyPoint& point, const Launch& launch,
           const StopSignals& signals)
      : study_(study),
        point_(point),
        launch_(launch),
        signals_(signals),
        attempts_(attempts_folder(folder, point.index)) {
    result_.point = point;
    result_.ranks = point.nodes * study.ranks_per_node;
    result_.attempt = next_attempt(attempts_);
    result_.began = utc_now();
    attempt_ = fmt::format("{}/{}", attempts_, result_.attempt);
  }

  // False when a signal came.
  bool run() {
    make_folder(attempt_);
    result_.environment = run_environment(launch_, {});
    try {
      started_ = launch_point(launch_, study_, point_);
      result_.environment = run_environment(launch_, started_);
    } catch (const Error& error) {
      result_.failure = PointFailure{"launch", error.what(), -1, std::nullopt, std::nullopt, {}};
    }
    write_text_file(
        attempt_ + "/started.json",
        nlohmann::ordered_json{{"began", result_.began}, {"environment", result_.environment}}.dump(2) + "\n");
    const int launches = study_.warmups + study_.repeats + (study_.traced ? 1 : 0);
    for (int i = 0; i < launches && !result_.failure; ++i) {
      if (!launch(i)) return false;
    }
    result_.ended = utc_now();
    return true;
  }

  const PointResult& result() const { return result_; }

 private:
  bool launch(int index) {
    const bool traced = study_.traced && index == study_.warmups + study_.repeats;
    const std::string folder = fmt::format("{}/{}", attempt_, index);
    make_folder(folder + "/log");
    std::vector<std::string> command = started_.command;
    const auto arguments = run_arguments(study_, point_, folder, traced);
    command.insert(command.end(), arguments.begin(), arguments.end());
    write_text_file(folder + "/command.txt", fmt::format("{}\n", fmt::join(command, " ")));
    const ProgramEnd end =
        run_program(command, {folder + "/stdout.txt", folder + "/stderr.txt"}, study_.point_seconds, signals_);
    if (end.how == ProgramEnd::How::kStopped) return false;
    if (end.how == ProgramEnd::How::kExit && end.code == 0) {
      judge(index, folder, end.seconds);
    } else {
      const std::vector<std::string> hosts =
          launch_.by == Launch::By::kSrun ? started_.hosts : std::vector<std::string>();
      fail(failure_cause(end, folder, hosts, study_.point_seconds), index);
    }
    return true;
  }

  void judge(int index, const std::string& folder, double wall_seconds) {
    try {
      const std::string path = folder + "/report.json";
      RunRecord run = parse_report(file_text(path), path);
      run.wall_seconds = wall_seconds;
      if (!first_) first_ = run;
      if (const std::string text = difference(*first_, run); !text.empty()) {
        return fail({"check", text + " of the point's first run", index, std::nullopt, std::nullopt, {}}, index);
      }
      const bool counts = index >= study_.warmups && index < study_.warmups + study_.repeats;
      if (counts) result_.runs.push_back(std::move(run));
    } catch (const Error& error) {
      fail({"report", error.what(), index, std::nullopt, std::nullopt, {}}, index);
    }
  }

  void fail(PointFailure failure, int index) {
    failure.launch = index;
    result_.failure = std::move(failure);
  }

  const Study& study_;
  const StudyPoint& point_;
  const Launch& launch_;
  const StopSignals& signals_;
  std::string attempts_;
  std::string attempt_;
  PointLaunch started_;
  PointResult result_;
  std::optional<RunRecord> first_;
};

}  // namespace

PointOutcome run_point(const std::string& folder, const Study& study, const StudyPoint& point, const Launch& launch,
                       bool retry, const StopSignals& signals) {
  const PointLock lock(lock_file(folder, point.index));
  const std::string path = result_file(folder, point.index);
  if (fs::exists(path) && (!retry || parse_result(file_text(path), path).done())) return PointOutcome::kSkipped;
  PointRun run(folder, study, point, launch, signals);
  if (!run.run()) return PointOutcome::kStopped;
  write_text_file(path, result_json(run.result()).dump() + "\n");
  return run.result().done() ? PointOutcome::kDone : PointOutcome::kFailed;
}

}  // namespace ringmark::cluster
