#include "cluster/telemetry/hang_watch.h"

namespace ringmark::cluster {

void HangWatch::look(const std::optional<comm::WaitNote>& wait) {
  if (told_ && (!wait || wait->id != told_->id)) {
    tell_({*told_, true});
    told_.reset();
  }
  if (!wait || wait->seconds < (told_ ? next_ : threshold_)) return;
  told_ = wait;
  next_ = 2 * wait->seconds;
  tell_({*wait, false});
}

}  // namespace ringmark::cluster
