// The command behind `ringmark policies`: the table of policies, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cluster/options/option_layers.h"

namespace ringmark::cluster {

boost::program_options::options_description policies_descriptions();
std::string policies_help();

// `arguments` stand behind the word policies. One process; nothing is read. Throws Error(kBadInput) for an option that
// it does not have and for a file that cannot be written. Returns the exit code.
int run_policies(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace ringmark::cluster
