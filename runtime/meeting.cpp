#include "runtime/meeting.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ringmark::runtime {

Meeting::Meeting(comm::Communicator& communicator, const partition::SequenceGrid& grid, const partition::Layout& layout)
    : communicator_(communicator) {
  if (communicator.size() == 1) return;
  const std::vector<std::int64_t> pairs = partition::measure_balance(grid, layout).pairs;
  const auto busiest = static_cast<double>(*std::max_element(pairs.begin(), pairs.end()));
  const std::int64_t own = pairs[static_cast<std::size_t>(communicator.rank())];
  busiest_over_own_ = busiest / static_cast<double>(std::max<std::int64_t>(1, own));
}

void Meeting::meet(std::string_view stage) const {
  if (communicator_.size() == 1) return;
  communicator_.barrier(stage, (std::chrono::steady_clock::now() - start_) * busiest_over_own_);
}

}  // namespace ringmark::runtime
