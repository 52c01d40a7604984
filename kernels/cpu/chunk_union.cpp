#include "kernels/cpu/chunk_union.h"

#include <algorithm>
#include <limits>

namespace ringmark::kernels::cpu {

ChunkUnion::ChunkUnion(std::int64_t most_rows, std::int64_t topk) {
  const auto most = static_cast<std::size_t>(most_rows * topk);
  chunks_.reserve(most);
  begins_.reserve(most + 1);
  members_.reserve(most);
  cursors_.reserve(static_cast<std::size_t>(most_rows));
  next_.reserve(static_cast<std::size_t>(most_rows));
}

// A merge of the rows' ascending lists: every step takes the least chunk that some row has not passed.
void ChunkUnion::gather(const Selection& selection, RowRange rows, std::int64_t chooser) {
  constexpr std::int32_t kDone = std::numeric_limits<std::int32_t>::max();
  chunks_.clear();
  begins_.assign(1, 0);
  members_.clear();
  cursors_.assign(static_cast<std::size_t>(rows.size()), 0);
  next_.assign(static_cast<std::size_t>(rows.size()), kDone);
  const auto advance = [&](std::size_t row, std::int32_t cursor) {
    const auto chosen = selection.chosen(rows.begin + static_cast<std::int64_t>(row), chooser);
    const auto at = static_cast<std::size_t>(cursor);
    cursors_[row] = cursor;
    next_[row] = at < chosen.size() ? chosen[at] : kDone;
  };
  for (std::size_t row = 0; row < next_.size(); ++row) advance(row, 0);
  while (true) {
    std::int32_t least = kDone;
    for (const std::int32_t chunk : next_) least = std::min(least, chunk);
    if (least == kDone) return;
    for (std::size_t row = 0; row < next_.size(); ++row) {
      if (next_[row] != least) continue;
      members_.push_back({static_cast<std::int32_t>(row), cursors_[row]});
      advance(row, cursors_[row] + 1);
    }
    chunks_.push_back(ChunkId(least));
    begins_.push_back(static_cast<std::int64_t>(members_.size()));
  }
}

std::span<const ChunkUnion::Member> ChunkUnion::members(std::int64_t i) const {
  const auto begin = static_cast<std::size_t>(begins_[static_cast<std::size_t>(i)]);
  const auto end = static_cast<std::size_t>(begins_[static_cast<std::size_t>(i) + 1]);
  return {members_.data() + begin, end - begin};
}

std::span<const ChunkUnion::Member> ChunkUnion::members(std::int64_t i, std::int64_t first, std::int64_t count) const {
  const std::span<const Member> all = members(i);
  const auto below = [](const Member& member, std::int64_t row) { return member.row < row; };
  const auto begin = std::lower_bound(all.begin(), all.end(), first, below);
  return {begin, std::lower_bound(begin, all.end(), first + count, below)};
}

}  // namespace ringmark::kernels::cpu
