// Reads inside one process: one rank, or ranks as threads, on one GPU or on several that can read each other.
#pragma once

#include "comm/cuda/device_arena.h"
#include "comm/cuda/mapped_transport.h"

namespace ringmark::comm::cuda {

class LocalDeviceTransport final : public MappedTransport {
 public:
  // Collective. The communicator shares its address space and lives longer than this. Throws Error(kEnvironment) on
  // every rank when a GPU cannot read another one's memory.
  explicit LocalDeviceTransport(Communicator& communicator);

  std::string_view name() const override { return "local"; }
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  void retire() override;

 private:
  // By region, by rank. Owned together: a rank that unwinds takes no memory away from one that still reads.
  std::vector<std::vector<std::shared_ptr<const DeviceArena>>> arenas_;
};

}  // namespace ringmark::comm::cuda
