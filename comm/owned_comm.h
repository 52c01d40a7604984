// A private duplicate of an MPI communicator: messages on it can never meet those of other users. MPI errors on it come
// back as return codes.
#pragma once

#include <mpi.h>

#include <chrono>
#include <string_view>

namespace ringmark::comm {

class OwnedComm {
 public:
  // Collective over `parent`. Past the limit the process ends and cannot say who is missing (see UncancellableWait):
  // callers who can, make sure first that every rank is there.
  OwnedComm(MPI_Comm parent, std::string_view stage, std::chrono::duration<double> limit);
  ~OwnedComm();
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;

  MPI_Comm get() const { return comm_; }
  // The communicator is never freed. For after a failure: messages may still arrive on it, and a later communicator
  // must not inherit its identity while they do.
  void abandon() noexcept { abandoned_ = true; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool abandoned_ = false;
};

}  // namespace ringmark::comm
