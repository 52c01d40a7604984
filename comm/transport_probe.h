// Whether a transport really works here. That it initialises proves nothing: on some stacks a one-sided read returns
// only when its target happens to enter MPI.
#pragma once

#include <chrono>
#include <string>

#include "comm/block_transport.h"
#include "comm/communicator.h"

namespace ringmark::comm {

inline constexpr std::chrono::seconds kProbeLimit{2};

struct ProbeResult {
  bool passed = false;
  std::string
      words;  // how it went or why it failed: those of the slowest rank or the first failed one, same everywhere
};

// Collective. Every rank reads 64 B and 64 KiB from its right neighbour, whose thread sleeps meanwhile, and checks the
// content. The transport has nothing exposed and a read timeout of kProbeLimit; after a failure it can only be
// destroyed.
ProbeResult probe_transport(Communicator& communicator, BlockTransport& transport);

}  // namespace ringmark::comm
