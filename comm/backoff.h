// How a loop waits between polls: briefly at full speed, then giving the core away, then asleep. Ranks may outnumber
// cores: a loop that only spins keeps the very peer it waits for off the core (measured: 4 ranks on 2 cores, a small
// all-gather of 6 us takes over 4 ms).
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace ringmark::comm {

class Backoff {
 public:
  void pause() {
    if (++idle_polls_ <= kSpins) return;
    if (idle_polls_ <= kSpins + kYields) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }
  void reset() { *this = Backoff(); }

 private:
  static constexpr int kSpins = 64;
  static constexpr int kYields = 128;
  static constexpr std::chrono::microseconds kLongestSleep{200};

  int idle_polls_ = 0;
  std::chrono::microseconds sleep_{10};
};

}  // namespace ringmark::comm
