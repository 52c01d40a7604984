// Reads between processes of one host through CUDA IPC: every rank maps the regions of the others and its own GPU
// fetches from them, over NVLink, PCIe, or inside the GPU that two ranks share.
#pragma once

#include "comm/cuda/device_arena.h"
#include "comm/cuda/mapped_transport.h"

namespace ringmark::comm::cuda {

class IpcTransport final : public MappedTransport {
 public:
  // Collective. The communicator lives longer than this. Throws Error(kEnvironment) for ranks that are threads of one
  // process: CUDA opens no handle in the process that made it.
  explicit IpcTransport(Communicator& communicator);
  // Regions that were not retired stay allocated until the process ends: peers may still have them mapped, and freeing
  // them then is undefined.
  ~IpcTransport() override;

  std::string_view name() const override { return "cuda-ipc"; }
  Bytes expose(std::int64_t bytes) override;
  // Maps what was exposed since the last one. Throws Error(kEnvironment) on every rank when one of them cannot map a
  // region of another; then this can only be destroyed.
  void publish() override;
  void retire() override;

 private:
  struct Region {
    std::shared_ptr<DeviceArena> arena;
    std::vector<std::int64_t> sizes;  // by rank
    std::vector<std::byte*> opened;   // by rank; null for this rank and for empty regions
  };

  void share(Region& region);
  // Returns what went wrong, if anything.
  std::string open_peers(Region& region, std::span<const cudaIpcMemHandle_t> handles);
  void close_peers() noexcept;

  std::vector<Region> regions_;
  std::size_t shared_ = 0;  // the first regions_: peers may have them mapped
};

}  // namespace ringmark::comm::cuda
