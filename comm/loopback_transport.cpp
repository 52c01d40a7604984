#include "comm/loopback_transport.h"

#include "comm/copy_bytes.h"
#include "core/error.h"

namespace ringmark::comm {
namespace {

class NothingPending final : public PendingReads {
 public:
  void wait() override {}
};

}  // namespace

LoopbackTransport::LoopbackTransport(Communicator& communicator, std::optional<SpillPolicy> spill)
    : communicator_(communicator), spill_(std::move(spill)), table_(communicator.rank()) {
  require(communicator.shares_address_space(), "loopback reads stay in one address space");
}

Bytes LoopbackTransport::expose(std::int64_t bytes) {
  constexpr std::string_view kStage = "expose a region";
  const AgreedArena agreed = allocate_on_all_ranks(communicator_, bytes, spill_, table_.own_bytes());
  const std::shared_ptr<Arena>* const mine = &agreed.arena;
  std::vector<const std::shared_ptr<Arena>*> owners(agreed.sizes.size());
  std::vector<Bytes> all;
  for (auto& owner : owners) all.push_back(std::as_writable_bytes(std::span(&owner, 1)));
  communicator_.all_gather(kStage, std::as_bytes(std::span(&mine, 1)), all);
  std::vector<std::shared_ptr<const Arena>> arenas;
  for (const auto* owner : owners) arenas.push_back(*owner);
  communicator_.barrier(kStage);  // until here the others read `agreed` of this rank
  arenas_.push_back(std::move(arenas));
  table_.add(agreed.sizes);
  return agreed.arena->bytes();
}

void LoopbackTransport::publish() {
  communicator_.barrier("publish regions");
  table_.publish();
}

std::unique_ptr<PendingReads> LoopbackTransport::get(std::span<const RemoteRead> reads) {
  table_.check(reads);
  for (const RemoteRead& read : reads) {
    const Arena& region = *arenas_[static_cast<std::size_t>(read.region)][static_cast<std::size_t>(read.peer)];
    copy_bytes(region.bytes().subspan(static_cast<std::size_t>(read.offset), read.destination.size()),
               read.destination);
  }
  return std::make_unique<NothingPending>();
}

void LoopbackTransport::retire() {
  communicator_.barrier("retire regions");
  table_.clear();
  arenas_.clear();
}

}  // namespace ringmark::comm
