// The command behind `ringmark prefill`.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

// `arguments` stand behind the word prefill; every rank of a job calls it with the same ones. Joins the job and runs
// the layer. Returns the exit code of the process. Throws Error only where no peer can be waiting: outside a job.
int run_prefill(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
