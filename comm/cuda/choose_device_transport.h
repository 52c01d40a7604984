// The transport between the GPUs of a job.
#pragma once

#include <memory>
#include <string>

#include "comm/cuda/device_transport.h"

namespace ringmark::comm::cuda {

enum class DeviceTransportChoice { kAuto, kCudaIpc, kNccl };

struct ChosenDeviceTransport {
  std::unique_ptr<DeviceTransport> transport;
  std::string why;  // one line: what was chosen and the reason
};

// Collective; every rank's GPU is current (choose_device). kAuto: local for one rank or ranks of one process; cuda-ipc
// when all ranks are on one host and a functional probe passes; nccl otherwise. A forced choice that fails its probe
// throws Error(kEnvironment) with the reason and never falls back. nccl is refused to ranks that share a GPU or a
// process.
ChosenDeviceTransport choose_device_transport(Communicator& communicator, DeviceTransportChoice choice);

}  // namespace ringmark::comm::cuda
