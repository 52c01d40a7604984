#include "cluster/job/gpu_device.h"

#include <cuda_runtime_api.h>

#include "comm/cuda/choose_device.h"
#include "core/cuda/error.h"

namespace ringmark::cluster {

GpuDevice choose_gpu(comm::Communicator& ranks, bool share) {
  const comm::cuda::ChosenDevice chosen = comm::cuda::choose_device(ranks, share);
  std::size_t free_bytes = 0, total_bytes = 0;
  ringmark::cuda::check(cudaMemGetInfo(&free_bytes, &total_bytes), "ask for the GPU's memory");
  // Sharers have not allocated yet: a rank that comes later must not find the memory taken.
  ranks.barrier("measure the GPU's memory");
  return {chosen.why, "GPU " + std::to_string(chosen.device), static_cast<std::int64_t>(free_bytes) / chosen.sharers};
}

comm::cuda::DeviceTransportChoice device_transport(TransportName name) {
  switch (name) {
    case TransportName::kCudaIpc: return comm::cuda::DeviceTransportChoice::kCudaIpc;
    case TransportName::kNccl: return comm::cuda::DeviceTransportChoice::kNccl;
    default: return comm::cuda::DeviceTransportChoice::kAuto;
  }
}

}  // namespace ringmark::cluster
