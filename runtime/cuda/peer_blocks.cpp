#include "runtime/cuda/peer_blocks.h"

#include <algorithm>

#include "runtime/cuda/workspace.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime::cuda {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + comm::cuda::kRegionAlignment - 1) / comm::cuda::kRegionAlignment * comm::cuda::kRegionAlignment;
}

}  // namespace

PeerBlocks::PeerBlocks(DeviceKeptLayer& layer, comm::cuda::DeviceTransport& transport)
    : layer_(layer), transport_(transport) {}

std::int64_t PeerBlocks::most_bytes_of_a_row(const KeptShape& shape, int ranks) {
  if (ranks == 1) return 0;
  const partition::SequenceGrid grid(shape.problem, shape.policy);
  const std::int64_t chunks = most_chunks_of_a_row(shape.problem, shape.policy, grid);
  const std::int64_t record = aligned(shape.landmark_shape().record_floats() * kFloat);
  // Every kv head may have chosen other chunks.
  return chunks * shape.problem.kv_heads * (aligned(kernels::BlockShape::of(shape.problem).bytes()) + record);
}

void PeerBlocks::bring(std::int64_t rows, const RowNeeds& needs_of, bool with_records, cudaStream_t stream,
                       DecodeTraffic& traffic) {
  std::vector<BlockId> needs;
  for (std::int64_t row = 0; row < rows; ++row) needs_of(row, needs);
  const partition::Layout& layout = layer_.sequences().layout();
  std::erase_if(needs, [&](const BlockId& block) { return layout.owner(block.chunk) == layer_.rank(); });
  std::sort(needs.begin(), needs.end());
  needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
  const auto blocks = static_cast<std::int64_t>(needs.size());
  traffic.blocks_pulled += blocks;
  traffic.bytes_pulled += blocks * layer_.block_bytes();
  if (with_records) {
    std::int64_t chunks = 0;
    for (std::size_t n = 0; n < needs.size(); ++n) chunks += n == 0 || needs[n].chunk != needs[n - 1].chunk ? 1 : 0;
    traffic.bytes_pulled += chunks * layer_.record_floats() * kFloat;
  }
  if (transport_.collective_get()) fetch(needs, with_records, stream);
}

void PeerBlocks::fetch(std::span<const BlockId> needs, bool with_records, cudaStream_t stream) {
  const partition::Layout& layout = layer_.sequences().layout();
  const std::int64_t block_bytes = layer_.block_bytes(), record_bytes = layer_.record_floats() * kFloat;
  const std::int64_t most = static_cast<std::int64_t>(needs.size()) * (aligned(block_bytes) + aligned(record_bytes));
  used_.record(stream);
  std::byte* next = Workspace::reserve(received_, most);
  std::vector<comm::RemoteRead> reads;
  std::vector<DeviceKeptLayer::Received> received;
  const auto read = [&](ChunkId chunk, int region, std::int64_t offset, std::int64_t bytes) {
    const auto peer = static_cast<int>(layout.owner(chunk).value());
    std::byte* const place = next;
    reads.push_back({peer, region, offset, {place, static_cast<std::size_t>(bytes)}});
    next += aligned(bytes);
    return place;
  };
  const float* record = nullptr;
  for (std::size_t n = 0; n < needs.size(); ++n) {
    const BlockId& block = needs[n];
    if (with_records && (n == 0 || needs[n - 1].chunk != block.chunk)) {
      record = reinterpret_cast<const float*>(
          read(block.chunk, DeviceKeptLayer::kLandmarkRegion, layer_.record_offset(block.chunk), record_bytes));
    }
    const std::byte* bytes =
        read(block.chunk, DeviceKeptLayer::kBlockRegion, layer_.block_offset(block.chunk, block.kv_head), block_bytes);
    received.push_back({block.chunk, block.kv_head, bytes, record});
  }
  used_.hold(transport_.stream());
  const auto pending = transport_.get(reads);
  arrived_.record(transport_.stream());
  arrived_.hold(stream);
  layer_.enter(received);
  pending->wait();
}

}  // namespace ringmark::runtime::cuda
