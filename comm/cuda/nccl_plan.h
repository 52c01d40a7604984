// Who sends what to whom and in which order, when reads need their owner to send. Both sides of a pair know the same
// list of runs, in the same order, and cut it by the same rule, which looks at the lengths alone: so every message has
// exactly one receive, of the same size and at the same place in the order of its pair, and a pair without runs has no
// message on either side.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/cuda/copy.h"
#include "comm/request_wire.h"

namespace ringmark::comm::cuda {

struct Outgoing {
  int peer = 0;
  ConstBytes memory;
};

struct Incoming {
  int peer = 0;
  Bytes memory;
};

// One message a pair and direction at most: pack, send and receive, unpack. A message of one run leaves and arrives in
// place; one of several runs goes through the staging memory.
struct Round {
  std::vector<Copy> pack;
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::vector<Copy> unpack;
};

// Memory of this rank for packed messages: rule.longest bytes a peer in either direction, in the order of ranks without
// this one.
struct Staging {
  Bytes outgoing;
  Bytes incoming;
  SliceRule rule;
};

// wanted_by[r]    runs of this rank's memory that rank r reads, in the order it asked for them
// wanted_from[r]  where what this rank asked of rank r goes, in the order it asked
// Both are empty for this rank itself. Round i of a rank goes with round i of its peers.
std::vector<Round> plan_rounds(int rank, std::span<const std::vector<ConstBytes>> wanted_by,
                               std::span<const std::vector<Bytes>> wanted_from, const Staging& staging);

}  // namespace ringmark::comm::cuda
