#include "bench/gpu/union_selection.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>

namespace ringmark::bench {
namespace {

constexpr std::int64_t kTilesOfNeighbourhood = 16;
constexpr std::int64_t kPoolOfChosen = 4;  // times topk

// The chunks that the tiles of a neighbourhood draw from: all its rows may choose them.
std::vector<std::int32_t> draw_pool(const Range<ChunkId>& eligible, std::int64_t topk, std::mt19937_64& random) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(eligible.size()));
  std::iota(all.begin(), all.end(), static_cast<std::int32_t>(eligible.begin.value()));
  std::vector<std::int32_t> pool;
  std::sample(all.begin(), all.end(), std::back_inserter(pool), kPoolOfChosen * topk, random);
  return pool;
}

// What one tile draws: base chunks first, spare ones behind them.
struct TileDraw {
  std::vector<std::int32_t> chunks;
  std::size_t base;

  TileDraw(std::vector<std::int32_t> pool, std::int64_t topk, double ratio, std::mt19937_64& random)
      : chunks(std::move(pool)), base(std::min(chunks.size(), static_cast<std::size_t>(topk))) {
    std::shuffle(chunks.begin(), chunks.end(), random);
    const double spare = (ratio - 1.0) * static_cast<double>(topk);
    const double whole = std::floor(spare);
    const bool one_more = std::bernoulli_distribution(spare - whole)(random);
    chunks.resize(std::min(chunks.size(), base + static_cast<std::size_t>(whole) + (one_more ? 1 : 0)));
  }

  void choose(std::int32_t* slots, std::mt19937_64& random) const {
    std::copy_n(chunks.begin(), base, slots);
    for (std::size_t spare = base; spare < chunks.size(); ++spare) {
      if (random() % 2 == 0) slots[random() % base] = chunks[spare];
    }
    std::sort(slots, slots + base);
  }
};

}  // namespace

std::vector<std::int32_t> select_with_union(const partition::SequenceGrid& grid, std::int64_t kv_heads,
                                            std::int64_t topk, std::int64_t tile_queries, double ratio) {
  std::vector<std::int32_t> selection(static_cast<std::size_t>(grid.tokens() * kv_heads * topk), -1);
  const std::int64_t stretch = kTilesOfNeighbourhood * tile_queries;
  const std::int64_t neighbourhoods = (grid.tokens() + stretch - 1) / stretch;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t n = 0; n < neighbourhoods * kv_heads; ++n) {
    const std::int64_t first = n / kv_heads * stretch, end = std::min(grid.tokens(), first + stretch);
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    const std::vector<std::int32_t> pool = draw_pool(grid.eligible(TokenId(first)), topk, random);
    for (std::int64_t tile = first; tile < end; tile += tile_queries) {
      const TileDraw drawn(pool, topk, ratio, random);
      if (drawn.base == 0) continue;
      for (std::int64_t row = tile; row < std::min(end, tile + tile_queries); ++row) {
        drawn.choose(selection.data() + (row * kv_heads + n % kv_heads) * topk, random);
      }
    }
  }
  return selection;
}

}  // namespace ringmark::bench
