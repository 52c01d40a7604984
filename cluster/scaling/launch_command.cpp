#include "cluster/scaling/launch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cluster/scaling/arm.h"
#include "cluster/scaling/slurm_job.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

std::string own_file() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail_environment(fmt::format("/proc/self/exe: {}", error.message()));
  return path.string();
}

std::string joined(const std::vector<std::string>& words, std::string_view suffix = "") {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}{}{}", text.empty() ? "" : ",", word, suffix);
  return text;
}

// The first hosts that Slurm would let a step run on: a job begun with --no-kill outlives some of its nodes.
std::vector<std::string> usable_hosts(const Launch& launch, int count) {
  std::vector<std::string> usable = launch.hosts;
  std::string others;
  if (launch.by == Launch::By::kSrun) {
    for (const SlurmNode& node : slurm_nodes(launch.hosts)) {
      if (node.usable()) continue;
      usable.erase(std::remove(usable.begin(), usable.end(), node.name), usable.end());
      others += fmt::format("; node {} is {}: {}", node.name, node.state, node.reason);
    }
  }
  if (usable.size() < static_cast<std::size_t>(count)) {
    fail_environment(fmt::format("the point needs {} nodes, there are {}{}", count, usable.size(), others));
  }
  usable.resize(static_cast<std::size_t>(count));
  return usable;
}

}  // namespace

PointLaunch launch_point(const Launch& launch, const Study& study, const StudyPoint& point) {
  PointLaunch result;
  if (!launch.hosts.empty()) result.hosts = usable_hosts(launch, point.nodes);
  const std::string ranks = fmt::format("{}", point.nodes * study.ranks_per_node);
  const std::string each = fmt::format("{}", study.ranks_per_node);
  std::vector<std::string>& command = result.command;
  if (launch.by == Launch::By::kSrun) {
    command = {"srun", "--mpi=pmix",        "-N", fmt::format("{}", point.nodes), "-n",
               ranks,  "--ntasks-per-node", each, "--kill-on-bad-exit=1"};
    if (!result.hosts.empty()) command.insert(command.end(), {"-w", joined(result.hosts)});
  } else {
    command = {"mpirun", "-n", ranks};
    if (!launch.hostfile.empty()) {
      command.insert(command.end(), {"--hostfile", launch.hostfile, "--map-by", fmt::format("ppr:{}:node", each)});
    } else if (!result.hosts.empty()) {
      command.insert(command.end(), {"--host", joined(result.hosts, ":" + each)});
    } else {
      command.emplace_back("--oversubscribe");  // this machine stands for all nodes
    }
  }
  command.insert(command.end(), launch.options.begin(), launch.options.end());
  command.push_back(own_file());
  return result;
}

std::vector<std::string> run_arguments(const Study& study, const StudyPoint& point, const std::string& folder,
                                       bool traced) {
  std::vector<std::string> arguments = {
      "prefill",       "--planted", fmt::format("{}", point.tokens), "--json", folder + "/report.json", "--log-dir",
      folder + "/log", "--quiet"};
  if (traced) arguments.insert(arguments.end(), {"--trace", folder + "/trace.json"});
  const std::vector<std::string> arm = arm_options(point.arm, study.shared);
  arguments.insert(arguments.end(), arm.begin(), arm.end());
  return arguments;
}

}  // namespace ringmark::cluster
