// The command behind `ringmark inspect`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word inspect. One process; nothing is changed. Throws Error(kBadInput) for what is
// missing, malformed or damaged. Returns the exit code.
int run_inspect(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
