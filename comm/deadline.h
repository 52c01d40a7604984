// Every wait has an end. A Deadline travels down each call that may wait for another rank.
#pragma once

#include <chrono>

namespace ringmark::comm {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline in(std::chrono::duration<double> from_now) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(from_now));
  }
  bool passed() const { return Clock::now() >= at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace ringmark::comm
