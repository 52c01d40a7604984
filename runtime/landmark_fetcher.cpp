#include "runtime/landmark_fetcher.h"

#include <algorithm>

namespace ringmark::runtime {

LandmarkFetcher::LandmarkFetcher(comm::BlockTransport& transport, int region, const partition::Layout& layout,
                                 kernels::LandmarkRecords& records)
    : transport_(transport), region_(region), layout_(layout), records_(records) {}

void LandmarkFetcher::start(std::span<const ChunkId> chunks) {
  // Records of the wave before are read again where this wave needs them too: they are small beside the blocks.
  next_.chunks.clear();
  for (const ChunkId chunk : chunks) {
    const bool of_last_wave = std::binary_search(current_.chunks.begin(), current_.chunks.end(), chunk);
    if (records_.of(chunk) == nullptr || of_last_wave) next_.chunks.push_back(chunk);
  }
  const std::int64_t floats = records_.shape.record_floats();
  const auto record_bytes = static_cast<std::int64_t>(sizeof(float)) * floats;
  next_.records.assign(next_.chunks.size() * static_cast<std::size_t>(floats), 0.0f);
  const comm::Bytes arena = std::as_writable_bytes(std::span(next_.records));
  std::vector<comm::RemoteRead> reads;
  for (std::size_t n = 0; n < next_.chunks.size(); ++n) {
    const ChunkId chunk = next_.chunks[n];
    reads.push_back(
        {static_cast<int>(layout_.owner(chunk).value()), region_, layout_.slot(chunk) * record_bytes,
         arena.subspan(n * static_cast<std::size_t>(record_bytes), static_cast<std::size_t>(record_bytes))});
  }
  bytes_ += static_cast<std::int64_t>(arena.size());
  pending_ = transport_.get(reads);
}

void LandmarkFetcher::wait() {
  pending_->wait();
  pending_.reset();
  const auto entry = [&](ChunkId chunk) -> const float*& {
    return records_.records[static_cast<std::size_t>(chunk.value())];
  };
  for (const ChunkId chunk : current_.chunks) entry(chunk) = nullptr;
  std::swap(current_, next_);
  for (std::size_t n = 0; n < current_.chunks.size(); ++n) {
    entry(current_.chunks[n]) = current_.records.data() + n * static_cast<std::size_t>(records_.shape.record_floats());
  }
}

}  // namespace ringmark::runtime
