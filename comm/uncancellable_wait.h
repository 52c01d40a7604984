// Collective calls of MPI itself (the beginning and the end, communicators, windows) wait for all ranks, and can be
// neither timed nor cancelled. Where a peer may stop in the middle of one, this ends the process instead.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "comm/current_wait.h"

namespace ringmark::comm {

class UncancellableWait {
 public:
  // Gets "rank 2: stage 'retire regions': waited 5.0 s for other ranks, inside MPI", on a thread of its own, and ends
  // the process. Unset, waits have no end. Set while nobody waits.
  using Overdue = std::function<void(const std::string& text)>;
  static void on_overdue(Overdue overdue);

  // As long as it lives, the call is under way; `stage` outlives it.
  UncancellableWait(int rank, std::string_view stage, std::chrono::duration<double> limit);
  ~UncancellableWait();
  UncancellableWait(const UncancellableWait&) = delete;
  UncancellableWait& operator=(const UncancellableWait&) = delete;

 private:
  void watch(int rank, std::string_view stage, std::chrono::duration<double> limit, const std::string& place);

  CurrentWait current_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace ringmark::comm
