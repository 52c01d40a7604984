#include "comm/uncancellable_wait.h"

#include <fmt/format.h>

#include <utility>

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
  if (handler()) thread_ = std::thread([this, rank, stage, limit] { watch(rank, stage, limit); });
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

void UncancellableWait::watch(int rank, std::string_view stage, std::chrono::duration<double> limit) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
  handler()(
      fmt::format("rank {}: stage '{}': waited {:.1f} s for other ranks, inside MPI", rank, stage, limit.count()));
}

}  // namespace ringmark::comm
