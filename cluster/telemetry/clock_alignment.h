// The clock of a rank against that of rank 0. Hosts have clocks of their own, which neither begin together nor run
// equally fast.
//
// A ping sent at s and answered at r (of the other clock), whose answer comes at a, puts the other clock at
//     offset = r - (s + a) / 2,   wrong by at most (a - s) / 2
// since the answer lies somewhere between s and a. Of several pings the fastest tells most. Two measurements give the
// drift; between them the offset is taken as linear.
#pragma once

#include <functional>
#include <span>

#include "comm/communicator.h"

namespace ringmark::cluster {

using ClockMicroseconds = std::function<double()>;

struct Ping {
  double sent_us = 0.0;      // own clock
  double answered_us = 0.0;  // the other one
  double arrived_us = 0.0;   // own clock
};

struct ClockOffset {
  double at_us = 0.0;           // own clock
  double offset_us = 0.0;       // to be added to the own clock
  double uncertainty_us = 0.0;  // largest error
};

// Of the fastest; `pings` is not empty.
ClockOffset best_offset(std::span<const Ping> pings);

// Own times as those of the other clock.
struct ClockAlignment {
  ClockOffset begin, end;

  double aligned(double own_us) const;
  // Largest error of an aligned time between the two measurements.
  double uncertainty_us() const;
  // Microseconds that the other clock gains in a second of this one.
  double drift_us_per_second() const;
};

// Collective: every rank in turn pings rank 0, whose own offset is 0. `now` reads the clock of this rank.
ClockOffset measure_offset(comm::Communicator& ranks, const ClockMicroseconds& now);

}  // namespace ringmark::cluster
