// Packages, cores, NUMA nodes and devices of this host in one line.
#pragma once

#include <string>

namespace ringmark::cluster {

// Says so where this build has no hwloc, or where it finds nothing.
std::string host_topology();

}  // namespace ringmark::cluster
