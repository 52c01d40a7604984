// `ringmark calibrate`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// Returns the exit code of this process; throws Error where there is no job.
int run_calibrate(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
