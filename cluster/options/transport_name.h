// Transports of host memory and of GPU memory by one list of names: a backend takes those of its own memory.
#pragma once

#include "cluster/options/option_layers.h"
#include "comm/block_transport.h"
#include "kernels/backend.h"

namespace ringmark::cluster {

enum class TransportName { kAuto, kRma, kRequest, kUcx, kCudaIpc, kNccl };

// The value of --transport. Throws Error(kBadInput) for one that does not move the memory of the backend.
TransportName read_transport(const OptionValues& values, kernels::Backend backend);

// Of names of host memory.
comm::TransportChoice host_transport(TransportName name);

}  // namespace ringmark::cluster
