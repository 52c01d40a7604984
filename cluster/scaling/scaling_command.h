// The commands behind `ringmark scaling`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word scaling. One process, which launches others. Returns the exit code; 1 is the answer
// of a study in which a point failed, results disagree, or have regressed.
int run_scaling(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
