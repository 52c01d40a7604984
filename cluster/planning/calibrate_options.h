// What `ringmark calibrate` was asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/options/transport_name.h"
#include "core/problem.h"
#include "kernels/backend.h"

namespace ringmark::cluster {

struct CalibrateOptions {
  std::string output;  // empty: only printed
  std::string name = "this machine";
  kernels::Backend backend = kernels::Backend::kCpu;
  AttentionProblem problem;  // but for its tokens
  AttentionPolicy policy;    // the middle one of those that are measured
  std::int64_t tokens = 0;   // of the longest layer
  std::int64_t repeats = 3;
  std::int64_t threads = 1;
  TransportName transport = TransportName::kAuto;
  double deadline_seconds = 120;
};

// `arguments` stand behind the word calibrate. Throws Error(kBadInput) in one line naming option, value and limit.
CalibrateOptions parse_calibrate_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description calibrate_descriptions();
std::string calibrate_help();

}  // namespace ringmark::cluster
