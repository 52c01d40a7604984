// Where ranks meet after work of uneven length: a barrier that grants the peers the time that this rank took since the
// start, times how much more work the layout gave the busiest of them. A long run must not take a busy peer for a dead
// one.
#pragma once

#include <chrono>
#include <string_view>

#include "comm/communicator.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {

class Meeting {
 public:
  // The work begins now.
  Meeting(comm::Communicator& communicator, const partition::SequenceGrid& grid, const partition::Layout& layout);

  // Collective. Throws Error(kPeer) when a peer misses the deadline; with one rank there is nobody to meet.
  void meet(std::string_view stage) const;

 private:
  comm::Communicator& communicator_;
  double busiest_over_own_ = 1.0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ringmark::runtime
