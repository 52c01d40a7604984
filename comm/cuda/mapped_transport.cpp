#include "comm/cuda/mapped_transport.h"

#include <algorithm>

#include "comm/cuda/choose_device.h"
#include "comm/cuda/pending_copies.h"
#include "core/error.h"

namespace ringmark::comm::cuda {

MappedTransport::MappedTransport(Communicator& communicator)
    : communicator_(communicator), table_(communicator.rank()) {
  const std::vector<Uuid> gpus = gather_current_gpus(communicator);
  for (const Uuid& gpu : gpus) on_other_gpu_.push_back(gpu != gpus[static_cast<std::size_t>(communicator.rank())]);
}

const std::byte* MappedTransport::peer_address(int rank, int region) const {
  require(region >= 0 && static_cast<std::size_t>(region) < published_ && rank >= 0 && rank < communicator_.size(),
          "addresses are of published regions");
  return addresses_[static_cast<std::size_t>(region)][static_cast<std::size_t>(rank)];
}

std::unique_ptr<PendingReads> MappedTransport::get(std::span<const RemoteRead> reads) {
  table_.check(reads);
  // Kept from call to call: fresh memory for long lists costs more than filling it.
  thread_local std::vector<Copy> near;
  thread_local std::vector<Copy> far;
  near.clear();
  far.clear();
  std::vector<bool> asked(on_other_gpu_.size());
  const auto add = [&](const RemoteRead& read) {
    const auto owner = static_cast<std::size_t>(read.peer);
    const std::byte* region = addresses_[static_cast<std::size_t>(read.region)][owner];
    (on_other_gpu_[owner] ? far : near)
        .push_back({region + read.offset, read.destination.data(), static_cast<std::int64_t>(read.destination.size())});
    asked[owner] = true;
  };
  // Reads usually come by owner: every rank starts with the next one, so that they do not all ask the same.
  const auto start = std::ranges::find_if(reads, [&](const RemoteRead& r) { return r.peer > communicator_.rank(); });
  std::for_each(start, reads.end(), add);
  std::for_each(reads.begin(), start, add);

  std::vector<CopyLists::Lease> leases;
  leases.push_back(lists_.enqueue(far, Reach::kPeers, stream_));
  leases.push_back(lists_.enqueue(near, Reach::kOwnMemory, stream_));
  std::vector<int> peers;
  for (std::size_t r = 0; r < asked.size(); ++r) {
    if (asked[r]) peers.push_back(static_cast<int>(r));
  }
  return std::make_unique<PendingCopies>(communicator_.rank(), communicator_.timeout(), stream_, std::move(leases),
                                         std::move(peers));
}

void MappedTransport::wait_for_gpu() { ringmark::cuda::check(cudaDeviceSynchronize(), "wait for the GPU"); }

void MappedTransport::add_region(std::vector<const std::byte*> addresses, std::vector<std::int64_t> sizes) {
  addresses_.push_back(std::move(addresses));
  table_.add(std::move(sizes));
}

void MappedTransport::publish_regions() {
  table_.publish();
  published_ = addresses_.size();
}

void MappedTransport::forget_regions() {
  table_.clear();
  addresses_.clear();
  published_ = 0;
}

}  // namespace ringmark::comm::cuda
