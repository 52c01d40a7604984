// Tells of waits that do not end: when one has lasted for the threshold, again each time it has lasted twice as long as
// when it was told last, and once when it is over after all. The waits are looked at, not timed: whoever waits does
// nothing for this.
#pragma once

#include <functional>
#include <optional>

#include "comm/current_wait.h"

namespace ringmark::cluster {

class HangWatch {
 public:
  struct Report {
    comm::WaitNote wait;
    bool is_over = false;
  };
  using Tell = std::function<void(const Report&)>;

  // threshold: seconds, above 0.
  HangWatch(double threshold, Tell tell) : threshold_(threshold), tell_(std::move(tell)) {}

  // Now and then; `wait` is what the rank waits for at this moment, nothing when it does not.
  void look(const std::optional<comm::WaitNote>& wait);

 private:
  double threshold_;
  Tell tell_;
  std::optional<comm::WaitNote> told_;
  double next_ = 0;  // seconds of the wait at which it is told again
};

}  // namespace ringmark::cluster
