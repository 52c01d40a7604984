// The command behind `ringmark backward`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word backward; every rank of a job calls it with the same ones. Joins the job, runs the
// layer and its backward pass. Returns the exit code of the process. Throws Error only where no peer can be waiting:
// outside a job.
int run_backward(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
