// GPU memory of this rank that peers read: 256-byte aligned, not initialised.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "core/cuda/buffer.h"

namespace ringmark::comm::cuda {

class DeviceArena {
 public:
  // Takes at least `bytes`, a multiple of `granularity`. Throws Error(kEnvironment) when they cannot be had.
  DeviceArena(std::int64_t bytes, std::int64_t granularity);

  Bytes bytes() const { return {memory_.data(), size_}; }

 private:
  ringmark::cuda::Buffer<std::byte> memory_;
  std::size_t size_;
};

struct AgreedDeviceArena {
  std::shared_ptr<DeviceArena> arena;
  std::vector<std::int64_t> sizes;  // by rank
};

// Collective: when one rank cannot have its memory, every rank throws Error(kEnvironment) naming it, the bytes and how
// many are free.
AgreedDeviceArena allocate_device_on_all_ranks(Communicator& communicator, std::int64_t bytes,
                                               std::int64_t granularity = 1);

}  // namespace ringmark::comm::cuda
