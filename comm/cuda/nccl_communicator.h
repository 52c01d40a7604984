// NCCL between the GPUs of all ranks, with an end to every wait: the communicator does not block, is asked for errors
// while the host waits, and is aborted at the timeout, so that a rank that is gone ends in Error(kPeer) and in no hang.
#pragma once

#include <nccl.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/block_transport.h"
#include "comm/cuda/copy_lists.h"
#include "comm/cuda/nccl_plan.h"
#include "core/cuda/stream.h"

namespace ringmark::comm::cuda {

class NcclCommunicator {
 public:
  // Collective. The current GPU is this rank's and no other rank's; the communicator lives longer than this. NVLink
  // multicast stays off unless NCCL_NVLS_ENABLE says otherwise: it can take the whole host's fabric down with it.
  explicit NcclCommunicator(Communicator& communicator);
  // Collective after success. After a failure, or while an exception unwinds, it aborts without its peers.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Every rank but this one.
  std::vector<int> others() const;

  // Enqueues one group of messages on `stream`. Each has its receive in the peer's group of the same position among
  // their common ones; none is empty and none goes to this rank itself.
  void exchange(std::string_view stage, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                cudaStream_t stream);

  // Blocks until the GPU has come past `done`. Throws Error(kPeer) naming rank, stage and peers at the timeout.
  void wait(std::string_view stage, const ringmark::cuda::Event& done, std::span<const int> peers);

  // What is enqueued on `stream` so far. leases: the lists that it reads; peers: whom it waits for.
  std::unique_ptr<PendingReads> pending(std::string_view stage, cudaStream_t stream,
                                        std::vector<CopyLists::Lease> leases, std::vector<int> peers);

  // Collective: every rank's device memory to every rank, sizes as in Communicator::all_gather. Enqueued on `stream`.
  std::unique_ptr<PendingReads> gather_device(std::string_view stage, ConstBytes mine, std::span<const Bytes> all,
                                              cudaStream_t stream);

 private:
  // Until what was posted last has been enqueued (or, at first, the communicator is there).
  void await_ready(std::string_view stage, std::span<const int> peers);
  void check(ncclResult_t result, std::string_view stage);
  void check_running(std::string_view stage);
  [[noreturn]] void fail(ExitCode code, const std::string& text);
  bool finalize() noexcept;
  void abort() noexcept;

  Communicator& communicator_;
  ncclComm_t comm_ = nullptr;
  bool started_ = false;
  std::string failure_;  // the first one; nothing is sent after it
  int exceptions_at_start_ = 0;
};

}  // namespace ringmark::comm::cuda
