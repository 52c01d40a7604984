#include "comm/current_wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace ringmark::comm {
namespace {

std::mutex mutex;
std::vector<const CurrentWait*> waits;  // in order of their beginning
std::optional<WaitNote> ended;
std::uint64_t begun_waits = 0;
double ended_seconds = 0;

}  // namespace

CurrentWait::CurrentWait(std::string_view stage, std::vector<int> peers, std::int64_t bytes)
    : note_{0, std::string(stage), current_step(), std::move(peers), bytes, 0} {
  const std::lock_guard lock(mutex);
  note_.id = ++begun_waits;
  waits.push_back(this);
}

CurrentWait::~CurrentWait() {
  const std::lock_guard lock(mutex);
  waits.erase(std::find(waits.begin(), waits.end(), this));
  ended = note();
  ended_seconds += ended->seconds;
}

void CurrentWait::renew(std::vector<int> peers, std::int64_t bytes) {
  const std::lock_guard lock(mutex);
  note_.peers = std::move(peers);
  note_.bytes = bytes;
}

WaitNote CurrentWait::note() const {
  WaitNote note = note_;
  note.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
  return note;
}

std::optional<WaitNote> CurrentWait::latest() {
  const std::lock_guard lock(mutex);
  if (waits.empty()) return std::nullopt;
  return waits.back()->note();
}

std::optional<WaitNote> CurrentWait::ended_last() {
  const std::lock_guard lock(mutex);
  return ended;
}

double CurrentWait::total_seconds() {
  const std::lock_guard lock(mutex);
  double seconds = ended_seconds;
  for (const CurrentWait* wait : waits) seconds += wait->note().seconds;
  return seconds;
}

std::string CurrentWait::words() {
  const std::optional<WaitNote> wait = latest();
  if (!wait) return {};
  const std::string peers = wait->peers.empty() ? "other ranks, inside MPI"
                                                : fmt::format("{} {}", wait->peers.size() == 1 ? "rank" : "ranks",
                                                              fmt::join(wait->peers, ", "));
  const std::string step = words_of(wait->step);
  return fmt::format("stage '{}': waiting {:.1f} s for {}{}", wait->stage, wait->seconds, peers,
                     step.empty() ? "" : fmt::format(" ({})", step));
}

void NotedWait::note(std::string_view stage, std::vector<int> peers, std::int64_t bytes) {
  next_ = std::chrono::steady_clock::now() + kRenewedWait;
  if (current_) {
    current_->renew(std::move(peers), bytes);
  } else {
    current_.emplace(stage, std::move(peers), bytes);
  }
}

}  // namespace ringmark::comm
