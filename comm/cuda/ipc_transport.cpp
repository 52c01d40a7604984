#include "comm/cuda/ipc_transport.h"

#include <fmt/format.h>

#include <utility>

#include "comm/cuda/agree.h"
#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr std::string_view kPublishing = "publish regions";
constexpr std::string_view kRetiring = "retire regions";
// Handles name whole 2 MiB pages: smaller regions would lie in one page with other memory of their process.
constexpr std::int64_t kPage = std::int64_t{2} << 20;

// Empty when it worked.
std::string export_region(Bytes region, cudaIpcMemHandle_t& handle) {
  if (region.empty()) return {};
  const cudaError_t status = cudaIpcGetMemHandle(&handle, region.data());
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return fmt::format("cannot hand out GPU memory: {}", cudaGetErrorString(status));
}

void leave_allocated(std::shared_ptr<DeviceArena> arena) { new std::shared_ptr<DeviceArena>(std::move(arena)); }

}  // namespace

IpcTransport::IpcTransport(Communicator& communicator) : MappedTransport(communicator) {
  if (communicator.size() > 1 && communicator.shares_address_space()) {
    fail_environment("transport 'cuda-ipc' needs ranks that are processes of their own");
  }
}

IpcTransport::~IpcTransport() {
  close_peers();
  for (std::size_t i = 0; i < shared_; ++i) leave_allocated(std::move(regions_[i].arena));
}

Bytes IpcTransport::expose(std::int64_t bytes) {
  AgreedDeviceArena agreed = allocate_device_on_all_ranks(communicator(), bytes, kPage);
  const std::size_t ranks = agreed.sizes.size();
  regions_.push_back({std::move(agreed.arena), std::move(agreed.sizes), std::vector<std::byte*>(ranks, nullptr)});
  return regions_.back().arena->bytes();
}

void IpcTransport::publish() {
  wait_for_gpu();
  while (shared_ < regions_.size()) share(regions_[shared_++]);
  communicator().barrier(kPublishing);
  publish_regions();
}

void IpcTransport::share(Region& region) {
  cudaIpcMemHandle_t mine{};
  agree(communicator(), kPublishing, export_region(region.arena->bytes(), mine));
  std::vector<cudaIpcMemHandle_t> handles(region.sizes.size());
  std::vector<Bytes> all;
  for (auto& handle : handles) all.push_back(std::as_writable_bytes(std::span(&handle, 1)));
  communicator().all_gather(kPublishing, std::as_bytes(std::span(&mine, 1)), all);
  agree(communicator(), kPublishing, open_peers(region, handles));
  std::vector<const std::byte*> addresses(region.opened.begin(), region.opened.end());
  addresses[static_cast<std::size_t>(communicator().rank())] = region.arena->bytes().data();
  add_region(std::move(addresses), region.sizes);
}

std::string IpcTransport::open_peers(Region& region, std::span<const cudaIpcMemHandle_t> handles) {
  for (std::size_t r = 0; r < handles.size(); ++r) {
    if (r == static_cast<std::size_t>(communicator().rank()) || region.sizes[r] == 0) continue;
    void* address = nullptr;
    const cudaError_t status = cudaIpcOpenMemHandle(&address, handles[r], cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      return fmt::format("cannot map the GPU memory of rank {} ({}); ranks of a host must see each other's GPUs", r,
                         cudaGetErrorString(status));
    }
    region.opened[r] = static_cast<std::byte*>(address);
  }
  return {};
}

void IpcTransport::close_peers() noexcept {
  for (Region& region : regions_) {
    for (std::byte*& address : region.opened) {
      if (address != nullptr) (void)cudaIpcCloseMemHandle(std::exchange(address, nullptr));
    }
  }
}

void IpcTransport::retire() {
  wait_for_gpu();
  communicator().barrier(kRetiring);
  close_peers();
  communicator().barrier(kRetiring);  // a region that is freed while a peer has it mapped is undefined
  forget_regions();
  regions_.clear();
  shared_ = 0;
}

}  // namespace ringmark::comm::cuda
