#include "cluster/scaling/scaling_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "cluster/scaling/file_text.h"
#include "cluster/scaling/launched_program.h"
#include "cluster/scaling/point_result.h"
#include "cluster/scaling/run_point.h"
#include "cluster/scaling/scaling_table.h"
#include "cluster/scaling/slurm_job.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr double kSubmitSeconds = 120;

std::string point_text(const Study& study, const StudyPoint& point) {
  return fmt::format("point {}: {} {}, {} node{} x {} rank{}, {} tokens", point.index, name_of(point.mode), point.arm,
                     point.nodes, point.nodes == 1 ? "" : "s", study.ranks_per_node,
                     study.ranks_per_node == 1 ? "" : "s", point.tokens);
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);  // a batch log is read while the study runs
}

PointResult kept_result(const std::string& folder, const StudyPoint& point) {
  const std::string path = result_file(folder, point.index);
  return parse_result(file_text(path), path);
}

bool is_done(const std::string& folder, const StudyPoint& point) {
  return std::filesystem::exists(result_file(folder, point.index)) && kept_result(folder, point).done();
}

bool has_result(const std::string& folder, const StudyPoint& point) {
  return std::filesystem::exists(result_file(folder, point.index));
}

Launch launch_of(const ScalingRunOptions& options) {
  Launch launch;
  const bool in_slurm = slurm_job().has_value();
  const bool hosts_given = !options.hosts.empty() || !options.hostfile.empty();
  const bool by_srun =
      options.launch == LaunchBy::kSrun || (options.launch == LaunchBy::kAuto && in_slurm && !hosts_given);
  launch.by = by_srun ? Launch::By::kSrun : Launch::By::kMpirun;
  if (by_srun && hosts_given) fail_bad_input("--hosts and --hostfile are for mpirun; srun takes the hosts of the job");
  launch.hosts = by_srun ? slurm_hosts() : options.hosts;
  launch.hostfile = options.hostfile;
  launch.options = options.launcher_options;
  return launch;
}

void say_outcome(const std::string& folder, const Study& study, const StudyPoint& point, PointOutcome outcome) {
  const std::string text = point_text(study, point);
  if (outcome == PointOutcome::kStopped) return say(fmt::format("{}: told to stop; run again to go on", text));
  const PointResult result = kept_result(folder, point);
  const std::string skipped = outcome == PointOutcome::kSkipped ? ", as before" : "";
  if (!result.done()) return say(fmt::format("{}: FAILED{}: {}", text, skipped, result.failure->text));
  const Spread s = result.seconds();
  say(fmt::format("{}: done{}: {} s ({} to {})", text, skipped, seconds_text(s.p50), seconds_text(s.min),
                  seconds_text(s.max)));
}

int run_points(const std::string& folder, const Study& study, const std::vector<StudyPoint>& points,
               const ScalingRunOptions& options) {
  const StopSignals signals;
  const Launch launch = launch_of(options);
  int code = 0;
  for (const StudyPoint& point : points) {
    const PointOutcome outcome = run_point(folder, study, point, launch, options.retry, signals);
    say_outcome(folder, study, point, outcome);
    if (outcome == PointOutcome::kStopped) return static_cast<int>(ExitCode::kRequeue);
    if (!is_done(folder, point)) code = 1;
  }
  return code;
}

// An array a node count, so that a job holds no more nodes than its points need.
int submit(const std::string& folder, const Study& study, const std::vector<StudyPoint>& points,
           const ScalingRunOptions& options) {
  std::map<int, std::string> tasks;
  for (const StudyPoint& point : points) {
    if (is_done(folder, point) || (has_result(folder, point) && !options.retry)) continue;
    std::string& list = tasks[point.nodes];
    list += fmt::format("{}{}", list.empty() ? "" : ",", point.index);
  }
  if (tasks.empty()) say("nothing to submit: all points have a result");
  const StopSignals signals;
  const ProgramFiles files = {folder + "/sbatch.out", folder + "/sbatch.err"};
  for (const auto& [nodes, list] : tasks) {
    std::vector<std::string> command = {"sbatch",
                                        "--parsable",
                                        "-N",
                                        fmt::format("{}", nodes),
                                        "--ntasks-per-node",
                                        fmt::format("{}", study.ranks_per_node),
                                        "--array",
                                        list};
    command.insert(command.end(), options.sbatch_options.begin(), options.sbatch_options.end());
    command.insert(command.end(), {options.script, folder});
    const ProgramEnd end = run_program(command, files, kSubmitSeconds, signals);
    if (end.how != ProgramEnd::How::kExit || end.code != 0) {
      fail_environment(fmt::format("sbatch for {} nodes: exit code {}: {}", nodes, end.code, file_text(files.error)));
    }
    std::string job = file_text(files.out);
    job.erase(job.find_last_not_of('\n') + 1);
    say(fmt::format("job {}: points {} on {} node{}", job, list, nodes, nodes == 1 ? "" : "s"));
  }
  for (const std::string& path : {files.out, files.error}) std::filesystem::remove(path);
  return 0;
}

}  // namespace

int run_study(const ScalingRunOptions& options) {
  // Ranks may be in other folders.
  const std::string folder = std::filesystem::absolute(options.folder).lexically_normal().string();
  if (options.study) create_study(folder, *options.study);
  const Study study = read_study(folder);
  std::vector<StudyPoint> points = study.points();
  if (options.point) {
    if (static_cast<std::size_t>(*options.point) >= points.size()) {
      fail_bad_input(fmt::format("--point = {}: the study has points 0 to {}", *options.point, points.size() - 1));
    }
    points = {points[static_cast<std::size_t>(*options.point)]};
  }
  if (options.plan) {
    for (const StudyPoint& point : points) say(point_text(study, point));
    return 0;
  }
  return options.launch == LaunchBy::kSlurmArray ? submit(folder, study, points, options)
                                                 : run_points(folder, study, points, options);
}

}  // namespace ringmark::cluster
