// What `ringmark simulate` was asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/planning/machine_profile.h"
#include "cluster/simulation/layer_schedule.h"
#include "cluster/simulation/study.h"
#include "cluster/simulation/topology.h"

namespace ringmark::cluster {

struct SimulateOptions {
  LayerJob job;                      // its tokens are set for each point
  std::vector<std::int64_t> tokens;  // strong: of a series; weak: on its smallest count of nodes
  std::vector<int> nodes;            // ascending
  Topology topology;                 // its nodes are set for each point
  MachineProfile profile;
  std::string fabric;  // by which nodes reach each other, in words
  Scaling mode = Scaling::kStrong;
  std::vector<Arm> arms = {Arm::kSparse};
  std::int64_t flow_limit = 20000;
  std::string json;  // empty: none
};

// `arguments` stand behind the word simulate. Throws Error(kBadInput) in one line.
SimulateOptions parse_simulate_options(const std::vector<std::string>& arguments, const Environment& environment);

// "1,2,8..64*2": counts and geometric ranges, as numbers with suffixes, ascending and each once. Throws
// Error(kBadInput) naming `origin`.
std::vector<std::int64_t> parse_series(const std::string& text, const std::string& origin, std::int64_t low,
                                       std::int64_t high);

boost::program_options::options_description simulate_descriptions();
std::string simulate_help();

}  // namespace ringmark::cluster
