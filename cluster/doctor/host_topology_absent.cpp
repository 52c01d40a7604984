#include "cluster/doctor/host_topology.h"

namespace ringmark::cluster {

std::string host_topology() {
  return "not known: this build has no hwloc (Debian: install libhwloc-dev and build again)";
}

}  // namespace ringmark::cluster
