#include "cluster/simulation/replay.h"
#include "core/error.h"

namespace ringmark::cluster {

bool can_replay() { return false; }

Replay replay(const Topology&, const std::vector<RankSchedule>&, std::int64_t) {
  fail_environment("this ringmark was built without SimGrid: install libsimgrid-dev 3.32 or later and build again");
}

}  // namespace ringmark::cluster
