#include "runtime/meeting.h"

#include <algorithm>
#include <array>
#include <vector>

namespace ringmark::runtime {
namespace {

// Who has done next to nothing cannot tell how long the whole takes.
constexpr double kLeastShare = 1e-3;
// So that deadlines of ranks without work stay inside the clock.
constexpr double kMostSeconds = 30.0 * 24 * 3600;

}  // namespace

Meeting::Meeting(comm::Communicator& communicator, const partition::SequenceGrid& grid, const partition::Layout& layout,
                 double seconds_before)
    : Meeting(communicator,
              communicator.size() == 1 ? std::vector<std::int64_t>{1} : partition::measure_balance(grid, layout).pairs,
              seconds_before) {}

Meeting::Meeting(comm::Communicator& communicator, std::span<const std::int64_t> work, double seconds_before)
    : communicator_(communicator), seconds_before_(seconds_before) {
  const auto busiest = static_cast<double>(*std::max_element(work.begin(), work.end()));
  const std::int64_t own = work[static_cast<std::size_t>(communicator.rank())];
  busiest_over_own_ = busiest / static_cast<double>(std::max<std::int64_t>(1, own));
}

double Meeting::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::chrono::duration<double> Meeting::allowance(double share) const {
  const double whole = seconds() / std::max(share, kLeastShare) * busiest_over_own_;
  return std::chrono::duration<double>(std::min(whole, kMostSeconds));
}

void Meeting::meet(std::string_view stage, double share) const {
  if (communicator_.size() > 1) communicator_.barrier(stage, allowance(share));
}

bool Meeting::any(std::string_view stage, bool mine, double share) const {
  meet(stage, share);
  std::array<std::int64_t, 1> some = {mine ? 1 : 0};
  communicator_.all_reduce_max(stage, some);
  return some[0] != 0;
}

}  // namespace ringmark::runtime
