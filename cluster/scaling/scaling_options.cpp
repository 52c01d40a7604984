#include "cluster/scaling/scaling_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>

#include "cluster/options/option_group.h"
#include "cluster/options/option_values.h"
#include "cluster/scaling/arm.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

namespace po = boost::program_options;

constexpr int kMaxNodes = 65536;
constexpr int kMaxRanks = 4096;  // a node
constexpr int kMaxRepeats = 10000;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr double kMaxSeconds = 7 * 24 * 3600;
// What makes a study; with none of them the one in the folder is gone on with.
constexpr std::array kOfStudy = {"nodes",  "ranks-per-node", "mode",     "tokens",    "arms",
                                 "repeat", "warmup",         "no-trace", "time-limit"};

constexpr std::string_view kHelpHead =
    R"(ringmark scaling run|collect|report: how prefill scales over node counts, and against a ring (docs/scaling.md).

  ringmark scaling run --dir study --nodes 1,2,4,8 --tokens 128k --arms sparse,ring -- --topk 16
  ringmark scaling run --dir study --point 3          one point, e.g. by a task of a job array
  ringmark scaling collect study --format csv
  ringmark scaling report study --html study/report.html

run launches by srun inside a Slurm job, else by mpirun. What follows -- are options of ringmark prefill for all arms that
understand them. A study that is there already is gone on with: done points are skipped.
Exit codes: 0 all that was asked for is done and good, 1 a point failed, results disagree or have regressed, 2 usage or bad
input, 3 environment, 75 told to stop, run again to go on.
)";

OptionGroup study_options() {
  const Study defaults;
  OptionGroup group("scaling run: the study");
  group.add("dir", "DIR", "folder of the study, seen by all nodes")
      .add("nodes", "LIST",
           "numbers of nodes, separated by commas; the smallest is N0, to which efficiency is relative")
      .add("ranks-per-node", "N", fmt::format("ranks on each (default: {})", defaults.ranks_per_node))
      .add("mode", "LIST",
           "strong (same tokens on all), weak (tokens in proportion to nodes) or both (default: strong)")
      .add("tokens", "N", "of the whole sequence; weak: at N0")
      .add("arms", "LIST",
           "what is compared: sparse (HiLS), ring, pass-q, all-gather, ulysses, ring-ulysses, or policies of prefill "
           "(default: sparse,ring)")
      .add("repeat", "N", fmt::format("launches a point that count (default: {})", defaults.repeats))
      .add("warmup", "N", fmt::format("launches a point before them (default: {})", defaults.warmups))
      .add_switch("no-trace", "without the launch that writes a trace for the timeline")
      .add("time-limit", "SECONDS",
           fmt::format("longest time of a launch, seconds (default: {})", defaults.point_seconds));
  return group;
}

OptionGroup launch_options() {
  OptionGroup group("scaling run: how it runs");
  group
      .add("launch", "NAME",
           "auto (srun inside a Slurm job, else mpirun), mpirun, srun, or slurm-array: submit the points (default: "
           "auto)")
      .add("hosts", "LIST", "hosts for mpirun, separated by commas (default: this machine is all nodes)")
      .add("hostfile", "FILE", "hosts for mpirun, in a file of its own format")
      .add("launcher-options", "TEXT", "options for mpirun or srun, separated by spaces")
      .add("point", "I", "run this point only, counted from 0")
      .add_switch("retry", "run points that have failed again")
      .add_switch("plan", "write study.json, print the points, and run nothing")
      .add("script", "FILE", "slurm-array: batch script that runs a point; its argument is the folder")
      .add("sbatch-options", "TEXT", "slurm-array: options for sbatch, separated by spaces");
  return group;
}

OptionGroup collect_options() {
  OptionGroup group("scaling collect DIR...");
  group.add("format", "NAME", "md, csv or jsonl (default: md)")
      .add("output", "FILE", "write the table there (default: stdout)")
      .add("reference", "FILE", "earlier results, a jsonl of collect: exit code 1 when a point has become slower")
      .add("tolerance", "X", "by more than this share (default: 0.1)");
  return group;
}

OptionGroup report_options() {
  OptionGroup group("scaling report DIR");
  group.add("html", "FILE", "the page; plots and tables are written beside it (default: DIR/report.html)")
      .add("title", "TEXT", "heading of the page")
      .add("note", "TEXT", "what a reader must know of the machine, shown below the answer")
      .add_switch("no-plots", "tables alone, without gnuplot");
  return group;
}

OptionGroup common_options() {
  OptionGroup group("All");
  group.add("config", "FILE", "read options from lines of the form key = value, # begins a comment")
      .add_switch("help", "print this text");
  return group;
}

po::options_description together(const std::vector<OptionGroup>& groups) {
  po::options_description all(OptionGroup::kLineWidth, OptionGroup::kTextWidth);
  for (const OptionGroup& group : groups) all.add(group.options());
  return all;
}

OptionValues read(const std::vector<OptionGroup>& groups, const std::vector<std::string>& arguments,
                  const Environment& environment) {
  const po::options_description own = together(groups);
  return read_option_layers(own, arguments, without_others(environment, own, scaling_descriptions()));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty() || separator != ' ') parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> read_names(const OptionValues& values, const std::string& name) {
  const std::string text = read_text(values, name);
  std::vector<std::string> names = split(text, ',');
  std::set<std::string> once(names.begin(), names.end());
  if (once.size() != names.size() || once.contains("")) {
    fail_bad_input(fmt::format("--{} = {} holds an empty or a repeated name", name, text));
  }
  return names;
}

std::vector<int> read_nodes(const OptionValues& values) {
  const auto counts = read_counts(values, "nodes");
  if (!counts) fail_bad_input("--nodes is missing: the numbers of nodes, such as 1,2,4,8");
  std::vector<int> nodes;
  for (const std::int64_t count : *counts) {
    if (count < 1 || count > kMaxNodes) fail_bad_input(fmt::format("--nodes: {} is not in [1, {}]", count, kMaxNodes));
    nodes.push_back(static_cast<int>(count));
  }
  std::sort(nodes.begin(), nodes.end());
  if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end()) fail_bad_input("--nodes holds a number twice");
  return nodes;
}

std::vector<ScalingMode> read_modes(const OptionValues& values) {
  std::vector<ScalingMode> modes;
  for (const std::string& name : read_names(values, "mode")) {
    if (name != "strong" && name != "weak")
      fail_bad_input(fmt::format("--mode: '{}' is neither strong nor weak", name));
    modes.push_back(name == "strong" ? ScalingMode::kStrong : ScalingMode::kWeak);
  }
  return modes.empty() ? std::vector{ScalingMode::kStrong} : modes;
}

Study read_study_options(const OptionValues& values, const std::vector<std::string>& shared) {
  Study study;
  study.nodes = read_nodes(values);
  study.ranks_per_node = static_cast<int>(read_count(values, "ranks-per-node", 1, kMaxRanks).value_or(1));
  study.modes = read_modes(values);
  const auto tokens = read_count(values, "tokens", 1, kMaxTokens);
  if (!tokens) fail_bad_input("--tokens is missing: tokens of the whole sequence, such as 128k");
  study.tokens = *tokens;
  const bool weak = std::find(study.modes.begin(), study.modes.end(), ScalingMode::kWeak) != study.modes.end();
  if (weak && study.tokens % study.first_nodes() != 0) {
    fail_bad_input(
        fmt::format("--tokens = {} is no multiple of the smallest number of nodes, {}, which weak scaling needs",
                    study.tokens, study.first_nodes()));
  }
  study.arms = read_names(values, "arms");
  if (study.arms.empty()) study.arms = {"sparse", "ring"};
  for (const std::string& arm : study.arms) check_arm(arm);
  study.repeats = static_cast<int>(read_count(values, "repeat", 1, kMaxRepeats).value_or(study.repeats));
  study.warmups = static_cast<int>(read_count(values, "warmup", 0, kMaxRepeats).value_or(study.warmups));
  study.traced = !read_switch(values, "no-trace");
  study.point_seconds = read_positive(values, "time-limit", kMaxSeconds).value_or(study.point_seconds);
  check_shared_options(shared);
  study.shared = shared;
  return study;
}

LaunchBy read_launch(const OptionValues& values) {
  const std::array<std::string, 4> names = {"auto", "mpirun", "srun", "slurm-array"};
  return static_cast<LaunchBy>(read_choice_index(values, "launch", names).value_or(0));
}

// Arguments that are neither flags nor values of one.
std::vector<std::string> take_paths(std::vector<std::string>& arguments) {
  std::vector<std::string> paths;
  std::vector<std::string> rest;
  bool is_value = false;
  for (std::string& argument : arguments) {
    const bool is_flag = argument.starts_with("--");
    (is_flag || is_value ? rest : paths).push_back(argument);
    is_value = is_flag && argument.find('=') == std::string::npos && argument != "--no-plots";
  }
  arguments = std::move(rest);
  return paths;
}

}  // namespace

ScalingRunOptions parse_scaling_run(std::vector<std::string> arguments, const Environment& environment) {
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const std::vector<std::string> shared(dashes == arguments.end() ? dashes : dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  const OptionValues values = read({study_options(), launch_options(), common_options()}, arguments, environment);
  ScalingRunOptions options;
  options.folder = read_text(values, "dir");
  if (options.folder.empty()) fail_bad_input("--dir is missing: the folder of the study");
  const bool described = !shared.empty() || std::any_of(kOfStudy.begin(), kOfStudy.end(), [&](const char* name) {
    const OptionValue* const value = find_value(values, name);
    return value != nullptr && value->text != "false";
  });
  if (described) options.study = read_study_options(values, shared);
  options.launch = read_launch(values);
  options.hosts = read_names(values, "hosts");
  options.hostfile = read_text(values, "hostfile");
  if (!options.hosts.empty() && !options.hostfile.empty()) fail_bad_input("--hosts and --hostfile are given together");
  options.launcher_options = split(read_text(values, "launcher-options"), ' ');
  options.script = read_text(values, "script");
  options.sbatch_options = split(read_text(values, "sbatch-options"), ' ');
  if ((options.launch == LaunchBy::kSlurmArray) != !options.script.empty()) {
    fail_bad_input("--launch slurm-array and --script FILE are given together or not at all");
  }
  if (const auto point = read_count(values, "point", 0, std::numeric_limits<int>::max()))
    options.point = static_cast<int>(*point);
  options.retry = read_switch(values, "retry");
  options.plan = read_switch(values, "plan");
  return options;
}

ScalingCollectOptions parse_scaling_collect(std::vector<std::string> arguments, const Environment& environment) {
  ScalingCollectOptions options;
  options.folders = take_paths(arguments);
  if (options.folders.empty()) fail_bad_input("no folder of a study to collect is given");
  const OptionValues values = read({collect_options(), common_options()}, arguments, environment);
  const std::array<std::string, 3> formats = {"md", "csv", "jsonl"};
  options.format = formats.at(read_choice_index(values, "format", formats).value_or(0));
  options.output = read_text(values, "output");
  options.reference = read_text(values, "reference");
  const auto tolerance = read_real(values, "tolerance", 0, 1000);
  if (tolerance && options.reference.empty()) fail_bad_input("--tolerance has no meaning without --reference");
  options.tolerance = tolerance.value_or(options.tolerance);
  return options;
}

ScalingReportOptions parse_scaling_report(std::vector<std::string> arguments, const Environment& environment) {
  ScalingReportOptions options;
  const std::vector<std::string> paths = take_paths(arguments);
  if (paths.size() != 1) fail_bad_input(fmt::format("{} folders of a study are given, must be 1", paths.size()));
  options.folder = paths.front();
  const OptionValues values = read({report_options(), common_options()}, arguments, environment);
  options.html = read_text(values, "html");
  if (options.html.empty()) options.html = options.folder + "/report.html";
  options.title = read_text(values, "title");
  options.note = read_text(values, "note");
  options.plots = !read_switch(values, "no-plots");
  return options;
}

po::options_description scaling_descriptions() {
  return together({study_options(), launch_options(), collect_options(), report_options(), common_options()});
}

std::string scaling_help() {
  std::ostringstream text;
  text << kHelpHead << "\n" << scaling_descriptions();
  return text.str();
}

}  // namespace ringmark::cluster
