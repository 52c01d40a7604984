// Copies that a transport has enqueued.
#pragma once

#include <chrono>
#include <vector>

#include "comm/block_transport.h"
#include "comm/cuda/copy_lists.h"
#include "core/cuda/stream.h"

namespace ringmark::comm::cuda {

// Whether the GPU has come past an event.
bool reached(const ringmark::cuda::Event& event);

class PendingCopies final : public PendingReads {
 public:
  // Everything enqueued on `stream` so far. leases: the lists that it reads; peers: whose memory it reads.
  PendingCopies(int rank, std::chrono::duration<double> timeout, cudaStream_t stream,
                std::vector<CopyLists::Lease> leases, std::vector<int> peers);
  ~PendingCopies() override;
  void wait() override;

 private:
  int rank_;
  std::chrono::duration<double> timeout_;
  ringmark::cuda::Event done_;
  std::vector<CopyLists::Lease> leases_;
  std::vector<int> peers_;
};

}  // namespace ringmark::comm::cuda
