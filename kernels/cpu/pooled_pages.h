// Pooled keys as a tile attends to them: page by page, each a block of fp32 as long as a chunk. Which rows share a page
// depends on where the walk begins, never on the tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/block_table.h"
#include "kernels/cpu/online_tile.h"
#include "kernels/pool_chunks.h"

namespace ringmark::kernels::cpu {

class PooledPages {
 public:
  PooledPages(const AttentionProblem& problem, const PooledKeys& pooled)
      : pooled_(pooled), page_rows_(problem.chunk_size), page_(pooled.shape(), 1, problem.kv_heads) {}

  // Token n of the tile sees the first visible_to(n) of the rows.
  template <class VisibleTo>
  void attend(OnlineTile& tile, std::int64_t kv_head, RowRange rows, VisibleTo&& visible_to) {
    for (std::int64_t first = rows.begin; first < rows.end; first += page_rows_) {
      const std::int64_t count = std::min(page_rows_, rows.end - first);
      page_.set(ChunkId(0), kv_head, pooled_.block(kv_head, first));
      tile.attend(page_, ChunkId(0), [&](std::int64_t n) {
        return KeyRun{0, std::clamp<std::int64_t>(visible_to(n) - (first - rows.begin), 0, count)};
      });
    }
  }

 private:
  PooledKeys pooled_;
  std::int64_t page_rows_;
  BlockTable page_;  // of one chunk: the page at hand
};

}  // namespace ringmark::kernels::cpu
