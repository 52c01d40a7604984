// The rows of a chunk by what they see: consecutive ones whose windows begin at one slot. One or two runs where windows
// begin at chunks.
#pragma once

#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::cluster {

inline std::vector<Range<TokenId>> window_runs(const partition::SequenceGrid& grid, ChunkId chunk) {
  const Range<TokenId> rows = grid.tokens_of(chunk);
  std::vector<Range<TokenId>> runs;
  for (TokenId first = rows.begin; first < rows.end;) {
    const TokenId start = grid.window_of(first).begin;
    // Windows never begin earlier than those of rows before: the first that begins later is found by halving.
    TokenId same = first, end = rows.end;
    while (end - same > 1) {
      const TokenId middle = same + (end - same) / 2;
      (grid.window_of(middle).begin == start ? same : end) = middle;
    }
    runs.push_back({first, end});
    first = end;
  }
  return runs;
}

}  // namespace ringmark::cluster
