// Started MPI operations, each with the peer it depends on, and the one loop that waits for all of them with a deadline
// and can name the peers that did not deliver.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace ringmark::comm {

class PeerRequests {
 public:
  explicit PeerRequests(int rank) : rank_(rank) {}
  // Gives up what was not waited for.
  ~PeerRequests() { abandon(); }
  PeerRequests(const PeerRequests&) = delete;
  PeerRequests& operator=(const PeerRequests&) = delete;

  // One message each, at most INT_MAX bytes. Memory stays valid and untouched until wait() returns.
  void send(MPI_Comm comm, int peer, int tag, ConstBytes message);
  void receive(MPI_Comm comm, int peer, int tag, Bytes message);
  // One-sided read at a byte displacement of the peer's window; the window is locked.
  void read(MPI_Win window, int peer, std::int64_t displacement, Bytes destination);

  bool empty() const { return requests_.empty(); }

  // Moves what can be moved now; true once nothing is pending. Throws as wait() does when MPI reports an error.
  bool poll(std::string_view stage);

  // Throws Error(kPeer) naming rank, stage and peers when the timeout passes, MPI reports an error, or a message is not
  // exactly as long as its receive. After an error nothing is pending any more, except a transfer that was already
  // running: it may still write, so the memory of a failed wait is not reused before the job ends.
  void wait(std::string_view stage, std::chrono::duration<double> timeout);

 private:
  enum class Kind { kSend, kReceive, kOneSided };
  struct Operation {
    int peer;
    Kind kind;
    std::int64_t bytes;
  };
  struct Unfinished {
    std::set<int> peers;
    std::int64_t bytes = 0;  // to be received
  };

  MPI_Request* start(int peer, Kind kind, std::size_t bytes);
  [[noreturn]] void give_up(std::string_view stage, std::chrono::duration<double> waited);
  Unfinished unfinished() const;
  void check_sizes(std::string_view stage) const;
  void abandon() noexcept;

  int rank_;
  std::vector<MPI_Request> requests_;
  std::vector<Operation> operations_;
  std::vector<MPI_Status> statuses_;
  bool complete_ = false;  // MPI gives the statuses of a finished set once
};

}  // namespace ringmark::comm
