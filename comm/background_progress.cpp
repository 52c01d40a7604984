#include "comm/background_progress.h"

#include <mpi.h>

#include <chrono>

namespace ringmark::comm {
namespace {

// A poll costs some microseconds, and lets a transport that copies through buffers fill them again.
constexpr std::chrono::microseconds kPause{100};

bool threads_may_call_mpi() {
  int granted = 0;
  return MPI_Query_thread(&granted) == MPI_SUCCESS && granted == MPI_THREAD_MULTIPLE;
}

}  // namespace

BackgroundProgress::BackgroundProgress(PeerRequests& requests, std::string_view stage)
    : requests_(requests), stage_(stage) {
  if (!requests.empty() && threads_may_call_mpi()) thread_ = std::thread([this] { poll_until_stopped(); });
}

BackgroundProgress::~BackgroundProgress() { join(); }

void BackgroundProgress::stop() {
  join();
  if (failure_) std::rethrow_exception(failure_);
}

void BackgroundProgress::join() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void BackgroundProgress::poll_until_stopped() {
  std::unique_lock lock(mutex_);
  try {
    while (!stopped_ && !requests_.poll(stage_)) changed_.wait_for(lock, kPause);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

}  // namespace ringmark::comm
