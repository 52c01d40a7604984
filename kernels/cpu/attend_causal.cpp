#include "kernels/attend_causal.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/online_tile.h"

namespace ringmark::kernels {
namespace {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// Ascending rows of one document. They need not be neighbours: what a row does not see costs it nothing.
std::vector<RowRange> cut_tiles(const CausalQueries& queries, RowRange rows, std::int64_t most_tokens) {
  std::vector<RowRange> tiles;
  TokenId document_end;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const TokenId token = queries.tokens[static_cast<std::size_t>(row)];
    const bool continues = !tiles.empty() && tiles.back().size() < most_tokens && token < document_end &&
                           token > queries.tokens[static_cast<std::size_t>(row - 1)];
    if (continues) {
      tiles.back().end = row + 1;
    } else {
      document_end = queries.grid.document_of(token).tokens.end;
      tiles.push_back({row, row + 1});
    }
  }
  return tiles;
}

// The work of one thread: one tile of one group at a time.
class CausalTile {
 public:
  CausalTile(const CausalQueries& queries, std::span<const ChunkId> chunks, const BlockTable& blocks,
             const OpenSoftmax& softmax, std::int64_t most_rows)
      : queries_(queries),
        chunks_(chunks),
        blocks_(blocks),
        softmax_(softmax),
        tile_(cpu::tile_kernels(), queries.problem, most_rows) {}

  void attend(RowRange rows, const HeadGroup& group) {
    const TokenId newest = queries_.tokens[static_cast<std::size_t>(rows.end - 1)];
    const auto first = std::lower_bound(chunks_.begin(), chunks_.end(), queries_.grid.document_of(newest).chunks.begin);
    const auto end = std::upper_bound(first, chunks_.end(), queries_.grid.chunk_of(newest));
    if (first == end) return;
    tile_.open(queries_.queries, rows, group, queries_.first_head);
    for_each_row(rows, group, [this](std::int64_t r, float* out, float& top, float& sum) {
      std::copy_n(out, queries_.queries.head_dim, tile_.out(r));
      tile_.top(r) = top;
      tile_.sum(r) = sum;
    });
    for (auto chunk = first; chunk != end; ++chunk) attend_chunk(*chunk, rows);
    for_each_row(rows, group, [this](std::int64_t r, float* out, float& top, float& sum) {
      std::copy_n(tile_.out(r), queries_.queries.head_dim, out);
      top = tile_.top(r);
      sum = tile_.sum(r);
    });
  }

 private:
  void attend_chunk(ChunkId chunk, RowRange rows) {
    const Range<TokenId> slots = queries_.grid.tokens_of(chunk);
    const bool landmark = queries_.problem.landmark_slots && slots.size() == queries_.problem.chunk_size;
    const std::int64_t keys = slots.size() - (landmark ? 1 : 0);
    tile_.attend(blocks_, chunk, [&](std::int64_t n) {
      const std::int64_t distance = queries_.tokens[static_cast<std::size_t>(rows.begin + n)] - slots.begin;
      return cpu::KeyRun{0, std::clamp<std::int64_t>(distance + 1, 0, keys), distance};
    });
  }

  template <class Visit>
  void for_each_row(RowRange rows, const HeadGroup& group, Visit visit) {
    for (std::int64_t r = 0; r < tile_.rows(); ++r) {
      const std::int64_t row = rows.begin + r / group.heads;
      const std::int64_t head = group.first_head + r % group.heads;
      visit(r, softmax_.out.at(row, head), softmax_.top(row, head), softmax_.sum(row, head));
    }
  }

  const CausalQueries& queries_;
  std::span<const ChunkId> chunks_;
  const BlockTable& blocks_;
  const OpenSoftmax& softmax_;
  cpu::OnlineTile tile_;
};

template <class Visit>
void for_each_row(const OpenSoftmax& softmax, Visit visit) {
  for (std::int64_t row = 0; row < softmax.out.dim(0); ++row) {
    for (std::int64_t head = 0; head < softmax.out.dim(1); ++head) {
      visit(softmax.out.at(row, head), softmax.top(row, head), softmax.sum(row, head));
    }
  }
}

}  // namespace

void start_softmax(const OpenSoftmax& softmax) {
  for_each_row(softmax, [&](float* out, float& top, float& sum) {
    std::fill_n(out, softmax.out.dim(2), 0.0f);
    top = kEmptyLse;
    sum = 0.0f;
  });
}

void attend_causal(const CausalQueries& queries, RowRange rows, std::span<const ChunkId> chunks,
                   const BlockTable& blocks, const OpenSoftmax& softmax, int threads) {
  require(softmax.out.stride(2) == 1, "attend_causal writes rows of contiguous components");
  const auto groups = static_cast<std::int64_t>(queries.groups.size());
  if (rows.empty() || chunks.empty() || groups == 0) return;
  const std::int64_t group = largest_group(queries.groups);
  const std::int64_t most_tokens = cpu::tile_tokens(rows.size() * groups, group, threads);
  const std::vector<RowRange> tiles = cut_tiles(queries, rows, most_tokens);
  std::vector<CausalTile> workers(static_cast<std::size_t>(threads),
                                  CausalTile(queries, chunks, blocks, softmax, most_tokens * group));
  // Last tiles first: they see the most keys.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = static_cast<std::int64_t>(tiles.size()) * groups - 1; task >= 0; --task) {
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(
        tiles[static_cast<std::size_t>(task / groups)], queries.groups[static_cast<std::size_t>(task % groups)]);
  }
}

void close_softmax(const OpenSoftmax& softmax) {
  for_each_row(softmax, [&](float* out, float& top, float& sum) {
    for (std::int64_t k = 0; k < softmax.out.dim(2); ++k) out[k] = sum == 0.0f ? 0.0f : out[k] / sum;
    top = sum == 0.0f ? kEmptyLse : static_cast<float>(top + std::log(double{sum}));
  });
}

}  // namespace ringmark::kernels
