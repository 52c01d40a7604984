// The GPU of this rank and what its transports are called, for every command that computes there. Only in builds with
// CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/options/transport_name.h"
#include "comm/communicator.h"
#include "comm/cuda/choose_device_transport.h"

namespace ringmark::cluster {

struct GpuDevice {
  std::string why;         // one line: name, UUID and sharers
  std::string name;        // "GPU 1": CUDA's number in this process
  std::int64_t limit = 0;  // bytes that this rank may take, its share where ranks share the GPU
};

// Collective: makes the GPU of the local rank current. Two ranks on one GPU, unless `share`, and a rank without one,
// are Error(kEnvironment).
GpuDevice choose_gpu(comm::Communicator& ranks, bool share);

// Of names of GPU memory.
comm::cuda::DeviceTransportChoice device_transport(TransportName name);

}  // namespace ringmark::cluster
