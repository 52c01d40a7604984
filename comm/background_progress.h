// MPI moves messages only while somebody calls it. This lets a thread call it now and then while its owner works: the
// thread sleeps in between, since cores may be fewer than ranks.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>

#include "comm/peer_requests.h"

namespace ringmark::comm {

class BackgroundProgress {
 public:
  // Polls the requests, which nobody else touches before stop(). Without MPI_THREAD_MULTIPLE it does nothing: messages
  // then move when they are waited for. `stage` outlives it.
  BackgroundProgress(PeerRequests& requests, std::string_view stage);
  ~BackgroundProgress();
  BackgroundProgress(const BackgroundProgress&) = delete;
  BackgroundProgress& operator=(const BackgroundProgress&) = delete;

  // Once, before the requests are waited for. Throws what polling threw.
  void stop();

 private:
  void poll_until_stopped();
  void join();

  PeerRequests& requests_;
  std::string_view stage_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace ringmark::comm
