#include "comm/uncancellable_wait.h"

#include <fmt/format.h>

#include <utility>

#include "comm/deadline.h"
#include "comm/peer_failure.h"

namespace ringmark::comm {
namespace {

UncancellableWait::Overdue& handler() {
  static UncancellableWait::Overdue overdue;
  return overdue;
}

}  // namespace

void UncancellableWait::on_overdue(Overdue overdue) { handler() = std::move(overdue); }

UncancellableWait::UncancellableWait(int rank, std::string_view stage, std::chrono::duration<double> limit)
    : current_(stage, {}) {
  if (handler())
    thread_ = std::thread([this, rank, stage, limit, place = place_text()] { watch(rank, stage, limit, place); });
}

UncancellableWait::~UncancellableWait() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void UncancellableWait::watch(int rank, std::string_view stage, std::chrono::duration<double> limit,
                              const std::string& place) {
  std::unique_lock lock(mutex_);
  Deadline deadline = Deadline::in(limit);
  while (!deadline.passed()) {
    if (changed_.wait_for(lock, Deadline::kLongestLook, [this] { return done_; })) return;
  }
  handler()(fmt::format("rank {}: stage '{}': waited {:.1f} s for other ranks, inside MPI{}", rank, stage,
                        limit.count(), place));
}

}  // namespace ringmark::comm
