// The stream of a transport: of the highest priority, so that its copies start in the gaps between the thread blocks of
// a kernel that is already running, not after all of them.
#pragma once

#include "core/cuda/error.h"

namespace ringmark::comm::cuda {

class TransportStream {
 public:
  TransportStream() {
    int lowest = 0;
    int highest = 0;
    ringmark::cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "ask for stream priorities");
    ringmark::cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "create a stream");
  }
  TransportStream(const TransportStream&) = delete;
  TransportStream& operator=(const TransportStream&) = delete;
  ~TransportStream() { (void)cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace ringmark::comm::cuda
