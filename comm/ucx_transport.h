// One-sided reads by UCX, for hosts joined by what Open MPI's own windows do not cover. Between ranks of one host a
// region is a shared segment, and a read needs nothing of its owner; over TCP a thread of the owner answers. A region
// that spills is no segment of the library's: it is read across address spaces where the kernel allows it, else over
// TCP.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/arena.h"
#include "comm/block_transport.h"
#include "comm/mpi_communicator.h"
#include "comm/region_table.h"
#include "comm/ucx_context.h"
#include "comm/ucx_server.h"

namespace ringmark::comm {

class UcxReader;

class UcxTransport final : public BlockTransport {
 public:
  // Collective. The communicator lives longer than this. ranks_of_host: those on this rank's host, itself included.
  // read_timeout: longest wait for one batch. spill: keeps what is over its memory in a file. Error(kEnvironment) on
  // every rank when one cannot open UCX.
  UcxTransport(Communicator& communicator, std::span<const int> ranks_of_host,
               std::chrono::duration<double> read_timeout, std::optional<SpillPolicy> spill = std::nullopt);
  UcxTransport(MpiCommunicator& communicator, std::chrono::duration<double> read_timeout,
               std::optional<SpillPolicy> spill = std::nullopt)
      : UcxTransport(communicator, communicator.ranks_of_host(), read_timeout, std::move(spill)) {}
  ~UcxTransport() override;

  std::string_view name() const override { return "ucx"; }
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

 private:
  struct UnmapMemory {
    ucp_context_h context;
    void operator()(ucp_mem_h handle) const { ucp_mem_unmap(context, handle); }
  };
  struct DestroyKey {
    void operator()(ucp_rkey_h key) const { ucp_rkey_destroy(key); }
  };
  struct Region {
    std::shared_ptr<Arena> arena;  // of a region that may spill; the library allocates the others
    std::unique_ptr<ucp_mem, UnmapMemory> mapping;
    Bytes memory;
    std::vector<std::uint64_t> addresses;                     // by rank
    std::vector<std::unique_ptr<ucp_rkey, DestroyKey>> keys;  // by rank; null for this one
  };

  // After a failure, when reads may still be under way: what they touch is not freed before the process ends.
  void leave_to_the_end() noexcept;
  void open();
  void connect(std::span<const int> ranks_of_host) const;
  // Completes all connections. Without a read over every one of them a peer's answer to the greeting may still wait to
  // be sent when its worker ends, and then UCX ends the process.
  void read_from_everyone();
  // Memory of the region's arena where it has one. Returns whether it is there.
  bool map(Region& region, std::int64_t bytes) const;
  void exchange_keys(Region& region) const;

  Communicator& communicator_;
  std::chrono::duration<double> read_timeout_;
  std::optional<SpillPolicy> spill_;
  UcxContext context_;
  std::unique_ptr<UcxServer> server_;
  std::shared_ptr<UcxReader> reader_;
  RegionTable table_;
  std::vector<Region> regions_;
};

}  // namespace ringmark::comm
