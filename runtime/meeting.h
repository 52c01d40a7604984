// Where ranks meet after work of uneven length: a barrier that grants the peers the time that this rank took since the
// start, times how much more work the layout gave the busiest of them. A long run must not take a busy peer for a dead
// one. Work that was begun in an earlier run counts with the time that it took there.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/communicator.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {

class Meeting {
 public:
  // The work begins now, after `seconds_before` in earlier runs.
  Meeting(comm::Communicator& communicator, const partition::SequenceGrid& grid, const partition::Layout& layout,
          double seconds_before = 0.0);
  // Work of any unit, by rank.
  Meeting(comm::Communicator& communicator, std::span<const std::int64_t> work, double seconds_before = 0.0);

  // Of the work so far.
  double seconds() const;

  // What the busiest peer may honestly need beyond the timeout, seen from a rank that has done a `share` of its work.
  std::chrono::duration<double> allowance(double share = 1.0) const;

  // Collective. Throws Error(kPeer) when a peer misses the deadline; with one rank there is nobody to meet. A rank that
  // comes with only a `share` of its work done grants its peers the time for all of it.
  void meet(std::string_view stage, double share = 1.0) const;
  // The same, and true on every rank when `mine` holds on one.
  bool any(std::string_view stage, bool mine, double share) const;

 private:
  comm::Communicator& communicator_;
  double seconds_before_;
  double busiest_over_own_ = 1.0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ringmark::runtime
