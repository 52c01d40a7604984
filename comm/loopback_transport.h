// Reads inside one address space: one rank, or ranks as threads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/arena.h"
#include "comm/block_transport.h"
#include "comm/region_table.h"

namespace ringmark::comm {

class LoopbackTransport final : public BlockTransport {
 public:
  // The communicator shares its address space and lives longer than this. spill: keeps what is over its memory in a
  // file.
  explicit LoopbackTransport(Communicator& communicator, std::optional<SpillPolicy> spill = std::nullopt);

  std::string_view name() const override { return "loopback"; }
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  // Copies before it returns.
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

 private:
  Communicator& communicator_;
  std::optional<SpillPolicy> spill_;
  RegionTable table_;
  // By region, by rank. Owned together: a rank that unwinds takes no memory away from one that still reads.
  std::vector<std::vector<std::shared_ptr<const Arena>>> arenas_;
};

}  // namespace ringmark::comm
