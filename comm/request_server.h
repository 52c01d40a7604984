// Answers the read requests of other ranks from this rank's memory, in a thread of its own, so that a reader never
// waits for the computation of the owner. The thread sleeps when there is nothing to do.
#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/arena.h"
#include "comm/owned_comm.h"
#include "comm/request_wire.h"

namespace ringmark::comm {

class RequestServer {
 public:
  using Regions = std::vector<std::shared_ptr<Arena>>;

  // Needs MPI_THREAD_MULTIPLE.
  explicit RequestServer(std::shared_ptr<OwnedComm> wire);
  // Stops after the replies that are under way; requests that arrive later are not answered.
  ~RequestServer();
  RequestServer(const RequestServer&) = delete;
  RequestServer& operator=(const RequestServer&) = delete;

  // Memory to answer from, replacing what was there before. Replies under way keep the memory they read alive.
  void serve(std::shared_ptr<const Regions> regions);
  // Throws Error(kPeer) if the thread had to stop because of an MPI error.
  void check_running() const;

 private:
  struct Reply {
    Reply(int to, int with_tag) : peer(to), tag(with_tag) {}
    int peer;
    int tag;
    Slice<ConstBytes> slice;
    std::shared_ptr<const Regions> keeps_alive;
    std::vector<std::byte> packed;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void run() noexcept;
  void listen();
  bool accept_request();
  void answer(int peer, ConstBytes message);
  bool start_replies();
  bool finish_replies();
  void stop_listening();
  void drain_replies();
  void check(int code, const char* operation) const;

  std::shared_ptr<OwnedComm> wire_;
  int rank_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;  // guards regions_ and failure_
  std::shared_ptr<const Regions> regions_;
  std::string failure_;

  // Of the thread alone.
  std::vector<std::byte> inbox_;
  MPI_Request incoming_ = MPI_REQUEST_NULL;
  std::deque<Reply> waiting_;
  std::vector<std::unique_ptr<Reply>> sending_;

  std::thread thread_;
};

}  // namespace ringmark::comm
