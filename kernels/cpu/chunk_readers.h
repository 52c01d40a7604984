// Which rows attend to each chunk of a range: what the backward pass of a chunk sums over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/attend_backward.h"

namespace ringmark::kernels::cpu {

class ChunkReaders {
 public:
  // Rows that see a chunk without having chosen it. Both ranges may be empty.
  struct Nearby {
    TokenId first;          // of the chunk
    std::int64_t keys = 0;  // of the chunk: its slots without the landmark
    RowRange window;        // rows whose window holds the chunk; each sees the keys up to itself
    RowRange sinks;         // rows behind those; each sees the first sink_keys
    std::int64_t sink_keys = 0;

    std::int64_t visible(TokenId query) const { return std::min(keys, query - first + 1); }
  };

  ChunkReaders(const BackwardRows& rows, Range<ChunkId> chunks, int threads);

  const Nearby& nearby(ChunkId chunk) const { return nearby_[static_cast<std::size_t>(chunk - chunks_.begin)]; }
  // Rows of a range that chose the chunk, ascending.
  std::span<const std::int64_t> chosen_by(ChunkId chunk, std::int64_t kv_head, RowRange rows) const;

 private:
  Nearby find_nearby(const BackwardRows& rows, ChunkId chunk) const;
  void find_choosers(const Selection& selection, std::int64_t kv_head);

  // Of one kv head: rows that chose the n-th chunk of the range are rows[begins[n], begins[n + 1]).
  struct Choosers {
    std::vector<std::int64_t> begins;
    std::vector<std::int64_t> rows;
  };

  Range<ChunkId> chunks_;
  std::vector<Nearby> nearby_;      // by chunk of the range
  std::vector<Choosers> choosers_;  // by kv head
};

}  // namespace ringmark::kernels::cpu
