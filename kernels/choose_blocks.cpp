#include "kernels/choose_blocks.h"

#include <algorithm>

namespace ringmark::kernels {

void BlockChoice::start(const partition::SequenceGrid& grid, TokenId query) {
  const ChunkId own = grid.chunk_of(query);
  const ChunkId first = grid.document_of(query).chunks.begin;
  forced_.clear();
  candidates_.clear();
  for (const ChunkId chunk : {first, own - 1, own}) {
    const auto id = static_cast<std::int32_t>(chunk.value());
    if (chunk >= first && (forced_.empty() || id > forced_.back())) forced_.push_back(id);
  }
}

void BlockChoice::offer(ChunkId chunk, float importance) {
  const auto id = static_cast<std::int32_t>(chunk.value());
  if (std::find(forced_.begin(), forced_.end(), id) != forced_.end()) return;
  const auto most = static_cast<std::size_t>(topk_) - forced_.size();
  const bool full = candidates_.size() == most;
  // What comes later has the higher id, and loses where importance is equal.
  if (full && (most == 0 || !(importance > candidates_.back().importance))) return;
  if (full) candidates_.pop_back();
  const auto place = std::upper_bound(candidates_.begin(), candidates_.end(), importance,
                                      [](float value, const Candidate& c) { return value > c.importance; });
  candidates_.insert(place, {importance, id});
}

void BlockChoice::write(std::span<std::int32_t> slots) const {
  std::fill(slots.begin(), slots.end(), -1);
  auto end = std::copy(forced_.begin(), forced_.end(), slots.begin());
  for (const Candidate& candidate : candidates_) *end++ = candidate.chunk;
  std::sort(slots.begin(), end);
}

}  // namespace ringmark::kernels
