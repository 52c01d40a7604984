// Reads by this rank's own GPU from memory that it can reach: what the local and the cuda-ipc transport have in common.
#pragma once

#include <vector>

#include "comm/cuda/copy_lists.h"
#include "comm/cuda/device_transport.h"
#include "comm/cuda/transport_stream.h"
#include "comm/region_table.h"

namespace ringmark::comm::cuda {

class MappedTransport : public DeviceTransport {
 public:
  cudaStream_t stream() const override { return stream_; }
  bool collective_get() const override { return false; }
  const std::byte* peer_address(int rank, int region) const override;
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;

 protected:
  // Collective. The communicator lives longer than this.
  explicit MappedTransport(Communicator& communicator);

  Communicator& communicator() const { return communicator_; }
  // What this rank's GPU has been given to do is done, so that what peers read is final and what they own is no longer
  // read.
  static void wait_for_gpu();

  // addresses: of the next region, by rank; null where it is empty. Peers may read it after publish_regions().
  void add_region(std::vector<const std::byte*> addresses, std::vector<std::int64_t> sizes);
  void publish_regions();
  void forget_regions();

 private:
  Communicator& communicator_;
  std::vector<bool> on_other_gpu_;  // by rank
  RegionTable table_;
  std::size_t published_ = 0;
  std::vector<std::vector<const std::byte*>> addresses_;  // by region, by rank
  TransportStream stream_;
  CopyLists lists_;
};

}  // namespace ringmark::comm::cuda
