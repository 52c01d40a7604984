// Lets peers read this rank's memory while it computes. Where the network reads by itself the thread has nothing to do;
// over TCP UCX answers reads in software, and only inside its progress call. The thread sleeps in between.
#pragma once

#include <atomic>
#include <thread>

#include "comm/ucx_context.h"

namespace ringmark::comm {

class UcxServer {
 public:
  // Throws Error(kEnvironment). The context lives longer than this.
  UcxServer(ucp_context_h context, int rank);
  ~UcxServer();
  UcxServer(const UcxServer&) = delete;
  UcxServer& operator=(const UcxServer&) = delete;

  // What peers connect to.
  const std::vector<std::byte>& address() const { return address_; }

 private:
  void run() noexcept;

  UcxWorker worker_;
  std::vector<std::byte> address_;
  int events_ = -1;  // readable when the worker wants progress; belongs to it
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ringmark::comm
