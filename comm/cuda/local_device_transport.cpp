#include "comm/cuda/local_device_transport.h"

#include <fmt/format.h>

#include "comm/cuda/agree.h"
#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

int current_device() {
  int device = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the current GPU");
  return device;
}

// Empty when it worked.
std::string let_read(int device, int peer_device) {
  if (device == peer_device) return {};
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer_device, 0);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  if (status == cudaErrorPeerAccessAlreadyEnabled) return {};
  return fmt::format("GPU {} cannot read the memory of GPU {}: {}", device, peer_device, cudaGetErrorString(status));
}

}  // namespace

LocalDeviceTransport::LocalDeviceTransport(Communicator& communicator) : MappedTransport(communicator) {
  require(communicator.shares_address_space(), "local reads stay in one address space");
  constexpr std::string_view kStage = "open the local transport";
  const int device = current_device();
  std::string trouble;
  for (const std::int64_t peer_device : communicator.gather_sizes(kStage, device)) {
    if (trouble.empty()) trouble = let_read(device, static_cast<int>(peer_device));
  }
  agree(communicator, kStage, trouble);
}

Bytes LocalDeviceTransport::expose(std::int64_t bytes) {
  constexpr std::string_view kStage = "expose a region";
  const AgreedDeviceArena agreed = allocate_device_on_all_ranks(communicator(), bytes);
  const std::shared_ptr<DeviceArena>* const mine = &agreed.arena;
  std::vector<const std::shared_ptr<DeviceArena>*> owners(agreed.sizes.size());
  std::vector<Bytes> all;
  for (auto& owner : owners) all.push_back(std::as_writable_bytes(std::span(&owner, 1)));
  communicator().all_gather(kStage, std::as_bytes(std::span(&mine, 1)), all);
  std::vector<std::shared_ptr<const DeviceArena>> arenas;
  std::vector<const std::byte*> addresses;
  for (const auto* owner : owners) {
    arenas.push_back(*owner);
    addresses.push_back((*owner)->bytes().data());
  }
  communicator().barrier(kStage);  // until here the others read `agreed` of this rank
  arenas_.push_back(std::move(arenas));
  add_region(std::move(addresses), agreed.sizes);
  return agreed.arena->bytes();
}

void LocalDeviceTransport::publish() {
  wait_for_gpu();
  communicator().barrier("publish regions");
  publish_regions();
}

void LocalDeviceTransport::retire() {
  wait_for_gpu();
  communicator().barrier("retire regions");
  forget_regions();
  arenas_.clear();
}

}  // namespace ringmark::comm::cuda
