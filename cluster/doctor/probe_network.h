// Whether the hosts of a job reach each other at all their addresses, and how far apart their clocks are.
#pragma once

#include <string>
#include <vector>

#include "cluster/doctor/finding.h"
#include "cluster/launch/network_interfaces.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

// Collective; the same on every rank. One rank a host connects by TCP to hosts at distances 1, 2, 4, ... in the order
// of first ranks, to every address they have that is up. hosts: by rank. A host that is reached at none of its
// addresses is a FAIL, one that is reached at some a WARN.
Findings probe_reachability(comm::Communicator& ranks, const std::vector<std::string>& hosts,
                            const std::vector<NetworkInterface>& own);

// Collective; the same on every rank.
Findings probe_clocks(comm::Communicator& ranks, const std::vector<std::string>& hosts);

}  // namespace ringmark::cluster
