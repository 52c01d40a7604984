// Said once before a job starts: settings with which it would fail, or run worse than it could.
#pragma once

#include "cluster/launch/launch_facts.h"

namespace ringmark::cluster {

// Rank 0 prints a line on stderr for each. Before MPI is initialised: with some of them that ends the process.
void warn_of_settings(const LaunchFacts& facts);

}  // namespace ringmark::cluster
