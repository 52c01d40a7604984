// `ringmark plan`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// Returns the exit code. Throws Error: kBadInput, and kEnvironment, after the plan, when it does not fit.
int run_plan(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
