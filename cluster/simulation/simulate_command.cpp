#include "cluster/simulation/simulate_command.h"

#include <cstdio>

#include "cluster/options/text_file.h"
#include "cluster/simulation/simulate_options.h"
#include "cluster/simulation/simulate_report.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

std::vector<Point> simulate_series(const SimulateOptions& options, Arm arm, std::int64_t tokens) {
  std::vector<Point> points;
  for (const int nodes : options.nodes) {
    LayerJob job = options.job;
    job.problem.tokens = options.mode == Scaling::kWeak ? tokens * nodes / options.nodes.front() : tokens;
    Topology topology = options.topology;
    topology.nodes = nodes;
    points.push_back(simulate_point(job, arm, topology, options.profile, options.flow_limit));
  }
  rate(points, options.mode);
  return points;
}

}  // namespace

int run_simulate(const std::vector<std::string>& arguments, const Environment& environment) {
  const SimulateOptions options = parse_simulate_options(arguments, environment);
  if (!options.json.empty()) check_text_file(options.json);
  if (!can_replay()) {
    fail_environment(
        "simulate: this ringmark was built without SimGrid; install libsimgrid-dev 3.32 or later and build");
  }
  print_setting(options);
  std::vector<Point> all;
  for (const Arm arm : options.arms) {
    for (const std::int64_t tokens : options.tokens) {
      const std::vector<Point> points = simulate_series(options, arm, tokens);
      print_series(options, points);
      std::fflush(stdout);
      all.insert(all.end(), points.begin(), points.end());
    }
  }
  if (!options.json.empty()) write_text_file(options.json, simulation_json(options, all));
  return 0;
}

}  // namespace ringmark::cluster
