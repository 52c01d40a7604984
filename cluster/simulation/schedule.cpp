#include "cluster/simulation/schedule.h"

#include <algorithm>

#include "core/error.h"

namespace ringmark::cluster {

std::int64_t RankSchedule::received_bytes() const {
  std::int64_t bytes = 0;
  for (const Step& step : steps) {
    for (const SimulatedWave& wave : step.waves) {
      for (const OwnerReads& reads : wave.reads) bytes += reads.bytes;
    }
  }
  return bytes;
}

void even_rounds(std::vector<RankSchedule>& schedules) {
  for (std::size_t s = 0; s < schedules.front().steps.size(); ++s) {
    std::size_t most = 0;
    for (const RankSchedule& schedule : schedules) {
      require(schedule.steps.size() == schedules.front().steps.size(), "all ranks have the same steps");
      most = std::max(most, schedule.steps[s].waves.size());
    }
    for (RankSchedule& schedule : schedules) {
      if (schedule.steps[s].together) schedule.steps[s].waves.resize(most);
    }
  }
}

}  // namespace ringmark::cluster
