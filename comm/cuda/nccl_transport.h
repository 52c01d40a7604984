// Reads by send and receive through NCCL: between hosts, and wherever GPUs cannot map each other's memory. The ranks
// tell each other over the communicator what they read; owners pack the pieces of one reader into one message.
#pragma once

#include "comm/cuda/copy_lists.h"
#include "comm/cuda/device_arena.h"
#include "comm/cuda/device_transport.h"
#include "comm/cuda/nccl_communicator.h"
#include "comm/cuda/transport_stream.h"
#include "comm/read_runs.h"
#include "comm/region_table.h"

namespace ringmark::comm::cuda {

class NcclTransport final : public DeviceTransport {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{128} << 20;

  // Collective, see NcclCommunicator. staging_bytes: device memory for packed messages, as much again for those that
  // arrive; the same on every rank.
  explicit NcclTransport(Communicator& communicator, std::int64_t staging_bytes = kStagingBytes);

  std::string_view name() const override { return "nccl"; }
  Bytes expose(std::int64_t bytes) override;
  void publish() override;
  // Collective. Returns when every rank has told what it reads and all messages are enqueued.
  std::unique_ptr<PendingReads> get(std::span<const RemoteRead> reads) override;
  void retire() override;

  cudaStream_t stream() const override { return stream_; }
  bool collective_get() const override { return true; }
  // This rank's own regions alone.
  const std::byte* peer_address(int rank, int region) const override;

  NcclCommunicator& nccl() { return nccl_; }

 private:
  using RunsByRank = std::vector<std::vector<ReadRun>>;

  // By rank: the runs of this rank's memory that it reads.
  std::vector<std::vector<ConstBytes>> tell_and_hear(const RunsByRank& runs_of);
  ConstBytes own_run(int reader, std::int64_t region, std::int64_t offset, std::int64_t bytes) const;
  void wait_for_gpu(std::string_view stage);

  Communicator& communicator_;
  RegionTable table_;
  std::vector<std::shared_ptr<DeviceArena>> arenas_;
  std::size_t published_ = 0;
  AgreedDeviceArena outgoing_;
  AgreedDeviceArena incoming_;
  TransportStream stream_;
  CopyLists lists_;
  NcclCommunicator nccl_;
};

}  // namespace ringmark::comm::cuda
