// Reads by MPI one-sided operations on windows that MPI allocates. Such windows lie in shared memory between the ranks
// of a host, so that a read needs nothing of its target; windows over ordinary memory stall until the target enters
// MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "comm/block_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/region_table.h"

namespace ringmark::comm {

class RmaTransport final : public BlockTransport {
 public:
  // Collective. The communicator lives longer than this. read_timeout: longest wait for one batch.
  RmaTransport(MpiCommunicator& communicator, std::chrono::duration<double> read_timeout);
  // Windows that were not retired are left to the end of the process: freeing them waits for the other ranks.
  ~RmaTransport() override = default;

  std::string_view name() const override { return "rma"; }
  // Collective: Error(kEnvironment) on every rank, with the bytes needed and free, when a host's /dev/shm cannot hold
  // regions of so many bytes of this rank.
  void check_room(std::int64_t bytes);
  // Also throws what check_room throws.
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

 private:
  struct Window {
    MPI_Win handle = MPI_WIN_NULL;
    Bytes memory;
    std::vector<std::int64_t> base;  // by rank: bytes from the start of its window to its region, for alignment
  };

  void check_shared_memory(std::span<const std::int64_t> sizes);
  void check(int code, const char* operation) const;

  MpiCommunicator& communicator_;
  std::chrono::duration<double> read_timeout_;
  std::shared_ptr<OwnedComm> wire_;
  RegionTable table_;
  std::vector<Window> windows_;
};

}  // namespace ringmark::comm
