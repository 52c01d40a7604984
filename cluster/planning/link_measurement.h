// What the links between the ranks of a job give: through the block transport and the communicator that a prefill uses.
#pragma once

#include <array>
#include <string>

#include "cluster/planning/machine_profile.h"
#include "comm/block_transport.h"
#include "comm/communicator.h"

namespace ringmark::cluster {

struct LinkMeasurement {
  std::array<LinkRate, kLinkClasses.size()> links;  // known where two ranks of the job are so connected
  std::string transport;                            // name; empty with one rank
  int hosts = 1;
  int ranks_on_host = 1;  // most
};

// Collective, the same on every rank. First one pair of ranks while the others wait, then all at once: what the ranks
// of a host have together. `block` is the size of a chosen block. With one rank nothing is known.
LinkMeasurement measure_links(comm::Communicator& ranks, comm::TransportChoice choice, std::int64_t block);

}  // namespace ringmark::cluster
