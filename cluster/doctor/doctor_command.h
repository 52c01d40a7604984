// The command behind `ringmark doctor`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word doctor. Collective over the ranks that mpirun or srun started, or one process.
// Returns the exit code: 0 when a job would run, 3 when it would fail.
int run_doctor(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
