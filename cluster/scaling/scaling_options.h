// What `ringmark scaling run|collect|report` was asked to do.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/scaling/study.h"

namespace ringmark::cluster {

enum class LaunchBy { kAuto, kMpirun, kSrun, kSlurmArray };

struct ScalingRunOptions {
  std::string folder;
  std::optional<Study> study;  // unset: the one in the folder
  LaunchBy launch = LaunchBy::kAuto;
  std::vector<std::string> hosts;
  std::string hostfile;
  std::vector<std::string> launcher_options;
  std::string script;  // of slurm-array
  std::vector<std::string> sbatch_options;
  std::optional<int> point;  // unset: all
  bool retry = false;
  bool plan = false;  // write study.json, print the points and end
};

struct ScalingCollectOptions {
  std::vector<std::string> folders;
  std::string format = "md";  // md, csv or jsonl
  std::string output;         // empty: stdout
  std::string reference;      // empty: none
  double tolerance = 0.1;
};

struct ScalingReportOptions {
  std::string folder;
  std::string html;
  std::string title;
  std::string note;
  bool plots = true;
};

// `arguments` stand behind the word run, collect or report. Throws Error(kBadInput) in one line.
ScalingRunOptions parse_scaling_run(std::vector<std::string> arguments, const Environment& environment);
ScalingCollectOptions parse_scaling_collect(std::vector<std::string> arguments, const Environment& environment);
ScalingReportOptions parse_scaling_report(std::vector<std::string> arguments, const Environment& environment);

// Of all three.
boost::program_options::options_description scaling_descriptions();
std::string scaling_help();

}  // namespace ringmark::cluster
