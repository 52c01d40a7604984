// Every wait has an end. A Deadline travels down each call that may wait for another rank.
#pragma once

#include <algorithm>
#include <chrono>

namespace ringmark::comm {

// For loops that look again and again. Time in which nobody could look does not count: where a process or its machine
// stood still for a while, what it waits for may have come, and it must get the time to see it.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  // What counts at most of the time between two looks.
  static constexpr std::chrono::milliseconds kLongestLook{250};

  static Deadline in(std::chrono::duration<double> from_now) {
    return Deadline(std::chrono::duration_cast<Clock::duration>(from_now));
  }
  bool passed() {
    const Clock::time_point now = Clock::now();
    left_ -= std::min<Clock::duration>(now - looked_, kLongestLook);
    looked_ = now;
    return left_ <= Clock::duration::zero();
  }

 private:
  explicit Deadline(Clock::duration left) : left_(left) {}
  Clock::duration left_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace ringmark::comm
