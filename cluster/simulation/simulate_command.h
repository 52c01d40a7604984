// The command behind `ringmark simulate`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word simulate. No MPI and no GPU. Throws Error(kBadInput), or Error(kEnvironment) where
// the binary was built without SimGrid. Returns the exit code.
int run_simulate(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
