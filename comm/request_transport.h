// Reads by request and reply. Works over whatever carries MPI messages, and needs MPI_THREAD_MULTIPLE for the thread
// that answers.
#pragma once

#include <memory>
#include <optional>

#include "comm/block_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/region_table.h"
#include "comm/request_server.h"

namespace ringmark::comm {

class RequestTransport final : public BlockTransport {
 public:
  // Collective. The communicator lives longer than this. Throws Error(kEnvironment) without MPI_THREAD_MULTIPLE.
  // read_timeout: longest wait for one batch. spill: keeps what is over its memory in a file.
  RequestTransport(MpiCommunicator& communicator, std::chrono::duration<double> read_timeout,
                   std::optional<SpillPolicy> spill = std::nullopt);

  std::string_view name() const override { return "request"; }
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

 private:
  void copy_own(std::span<const ReadRun> runs) const;

  MpiCommunicator& communicator_;
  std::chrono::duration<double> read_timeout_;
  std::optional<SpillPolicy> spill_;
  std::shared_ptr<OwnedComm> wire_;
  RegionTable table_;
  RequestServer::Regions arenas_;
  std::atomic<std::uint64_t> sequence_{0};
  RequestServer server_;
};

}  // namespace ringmark::comm
