// Whether a device transport really works here: that memory can be mapped proves nothing.
#pragma once

#include "comm/cuda/device_transport.h"
#include "comm/transport_probe.h"

namespace ringmark::comm::cuda {

// Collective. Every rank reads 64 B and 64 KiB from every rank and checks the content. The transport has nothing
// exposed; after a failure it can only be destroyed. Throws what publish() throws.
ProbeResult probe_device_transport(Communicator& communicator, DeviceTransport& transport);

}  // namespace ringmark::comm::cuda
