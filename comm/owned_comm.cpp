#include "comm/owned_comm.h"

#include <exception>

#include "comm/mpi_error.h"
#include "comm/uncancellable_wait.h"

namespace ringmark::comm {

OwnedComm::OwnedComm(MPI_Comm parent, std::string_view stage, std::chrono::duration<double> limit) {
  int rank = 0;
  MPI_Comm_rank(parent, &rank);
  const UncancellableWait wait(rank, stage, limit);
  check_mpi(MPI_Comm_dup(parent, &comm_), rank, stage, "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

OwnedComm::~OwnedComm() {
  // Freeing is collective: a rank that unwinds alone must not start it.
  if (abandoned_ || std::uncaught_exceptions() > 0) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&comm_);
}

}  // namespace ringmark::comm
