// The rows of one layer that a rank holds, on its GPU: [rows, heads, head_dim] in storage precision, in the order of
// the layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/buffer.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime::cuda {

struct DeviceShard {
  std::int64_t rows = 0;
  ringmark::cuda::Buffer<std::byte> q;
  ringmark::cuda::Buffer<std::byte> retrieval_q;  // empty: the attention queries
  ringmark::cuda::Buffer<std::byte> k;
  ringmark::cuda::Buffer<std::byte> v;

  const std::byte* retrieval_queries() const { return retrieval_q.empty() ? q.data() : retrieval_q.data(); }

  static DeviceShard upload(LayerShard& shard, cudaStream_t stream) {
    DeviceShard device;
    device.rows = shard.rows();
    const auto copy = [&](const std::vector<std::byte>& host) {
      ringmark::cuda::Buffer<std::byte> buffer(static_cast<std::int64_t>(host.size()));
      buffer.upload(host.data(), buffer.size(), stream);
      return buffer;
    };
    device.q = copy(shard.q());
    device.retrieval_q = copy(shard.retrieval_q());
    device.k = copy(shard.k());
    device.v = copy(shard.v());
    ringmark::cuda::check(cudaStreamSynchronize(stream), "upload the layer");
    return device;
  }
};

}  // namespace ringmark::runtime::cuda
