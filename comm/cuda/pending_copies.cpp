#include "comm/cuda/pending_copies.h"

#include "comm/backoff.h"
#include "comm/deadline.h"
#include "comm/peer_failure.h"
#include "core/error.h"

namespace ringmark::comm::cuda {

bool reached(const ringmark::cuda::Event& event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status != cudaErrorNotReady) {
    ringmark::cuda::check(status, "block reads");
    return true;
  }
  (void)cudaGetLastError();  // not an error: the next launch must not report it
  return false;
}

PendingCopies::PendingCopies(int rank, std::chrono::duration<double> timeout, cudaStream_t stream,
                             std::vector<CopyLists::Lease> leases, std::vector<int> peers)
    : rank_(rank), timeout_(timeout), leases_(std::move(leases)), peers_(std::move(peers)) {
  done_.record(stream);
}

PendingCopies::~PendingCopies() {
  try {
    wait();
  } catch (const Error&) {
    // The GPU may still read the lists: they are never used again.
    for (CopyLists::Lease& lease : leases_) (void)lease.release();
  }
}

void PendingCopies::wait() {
  Deadline deadline = Deadline::in(timeout_);
  Backoff backoff;
  while (!reached(done_)) {
    if (deadline.passed()) fail_peer(waited_text(rank_, "block reads", timeout_, peers_));
    backoff.pause();
  }
  leases_.clear();
}

}  // namespace ringmark::comm::cuda
