// Block transports whose regions and destinations are GPU memory. Spans hold device addresses: the host passes them on
// and never follows them.
//
//     Bytes region = transport.expose(bytes);      // Collective; fill it on any stream
//     transport.publish();                         // waits for the GPU, then for the peers
//     free_to_write.hold(transport.stream());      // destinations are no longer read by earlier kernels
//     auto pending = transport.get(reads);         // enqueued, not done
//     arrived.record(transport.stream());
//     arrived.hold(compute);                       // kernels after this see the blocks; no host thread waits
//     ...
//     pending->wait();                             // or its end: the host waits
//     transport.retire();                          // waits for the GPU, then for the peers
//
// The GPU is the one that was current when the transport was made, and it is current in every thread that calls one.
// Pending reads end before their transport.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/block_transport.h"

namespace ringmark::comm::cuda {

inline constexpr std::int64_t kRegionAlignment = 256;

class DeviceTransport : public BlockTransport {
 public:
  // get() enqueues here.
  virtual cudaStream_t stream() const = 0;
  // True when a read needs its owner: every rank calls get() equally often, with nothing if it wants nothing.
  virtual bool collective_get() const = 0;
  // Where this rank's kernels can read a published region of a rank themselves, until retire(); null when they cannot,
  // or when the region is empty.
  virtual const std::byte* peer_address(int rank, int region) const = 0;
};

}  // namespace ringmark::comm::cuda
