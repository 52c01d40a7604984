// What a tile's own rows read of peers. Where the GPU reads their memory itself there is nothing to do but to count;
// otherwise the blocks (and the records of chosen chunks) are fetched into own memory by one exchange a stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/cuda/device_transport.h"
#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "runtime/cuda/kept_layer.h"
#include "runtime/decode.h"
#include "runtime/fetch_plan.h"

namespace ringmark::runtime::cuda {

class PeerBlocks {
 public:
  // Both outlive the object.
  PeerBlocks(DeviceKeptLayer& layer, comm::cuda::DeviceTransport& transport);

  // Bytes of what one row may have to fetch at once; 0 for one rank.
  static std::int64_t most_bytes_of_a_row(const KeptShape& shape, int ranks);

  // Collective where the transport's reads are: what rows [0, rows) need, with_records: also what weighs it. Kernels
  // that are enqueued on `stream` afterwards see it, until the next call.
  void bring(std::int64_t rows, const RowNeeds& needs_of, bool with_records, cudaStream_t stream,
             DecodeTraffic& traffic);

 private:
  void fetch(std::span<const BlockId> needs, bool with_records, cudaStream_t stream);

  DeviceKeptLayer& layer_;
  comm::cuda::DeviceTransport& transport_;
  ringmark::cuda::Buffer<std::byte> received_;
  ringmark::cuda::Event used_;     // by kernels before
  ringmark::cuda::Event arrived_;  // on the transport's stream
};

}  // namespace ringmark::runtime::cuda
