#include "comm/current_wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

namespace ringmark::comm {
namespace {

std::mutex mutex;
std::vector<const CurrentWait*> waits;  // in order of their beginning

}  // namespace

CurrentWait::CurrentWait(std::string_view stage, std::vector<int> peers) : stage_(stage), peers_(std::move(peers)) {
  const std::lock_guard lock(mutex);
  waits.push_back(this);
}

CurrentWait::~CurrentWait() {
  const std::lock_guard lock(mutex);
  waits.erase(std::find(waits.begin(), waits.end(), this));
}

std::string CurrentWait::words() {
  const std::lock_guard lock(mutex);
  if (waits.empty()) return {};
  const CurrentWait& wait = *waits.back();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - wait.since_;
  const std::string peers = wait.peers_.empty() ? "other ranks, inside MPI"
                                                : fmt::format("{} {}", wait.peers_.size() == 1 ? "rank" : "ranks",
                                                              fmt::join(wait.peers_, ", "));
  return fmt::format("stage '{}': waiting {:.1f} s for {}", wait.stage_, waited.count(), peers);
}

}  // namespace ringmark::comm
