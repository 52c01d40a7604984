// The command behind `ringmark decode`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word decode; every rank of a job calls it with the same ones. Joins the job and runs
// the steps. Returns the exit code of the process, ExitCode::kRequeue when it was told to stop and has kept its state.
// Throws Error only where no peer can be waiting: outside a job.
int run_decode(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
