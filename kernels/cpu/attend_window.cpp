#include "kernels/attend_window.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_panels.h"
#include "kernels/cpu/tile_queries.h"

namespace ringmark::kernels {
namespace {

using cpu::TileKernels;

constexpr std::int64_t kTileRows = 256;  // (query, head) rows: a packed chunk is used that often
constexpr std::int64_t kTasksPerThread = 4;
constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const BlockTable& blocks;
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
};

// Of every chunk a query sees a prefix: up to itself inside the window, up to the end of the sinks below it.
struct Sight {
  TokenId query;
  TokenId window_begin;
  TokenId sinks_end;

  std::int64_t keys_of(Range<TokenId> slots, std::int64_t keys) const {
    const TokenId end = slots.begin >= window_begin ? query + 1 : sinks_end;
    return std::clamp<std::int64_t>(end - slots.begin, 0, keys);
  }
};

// Rows of consecutive tokens of one document, so that the chunks a tile walks are the chunks its rows see.
std::vector<RowRange> cut_tiles(const Problem& problem, RowRange rows, std::int64_t most_tokens) {
  std::vector<RowRange> tiles;
  TokenId document_end;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const TokenId token = problem.tokens[static_cast<std::size_t>(row)];
    const bool continues = !tiles.empty() && tiles.back().size() < most_tokens && token < document_end &&
                           token == problem.tokens[static_cast<std::size_t>(row - 1)] + 1;
    if (continues) {
      tiles.back().end = row + 1;
    } else {
      document_end = problem.grid.document_of(token).tokens.end;
      tiles.push_back({row, row + 1});
    }
  }
  return tiles;
}

std::int64_t tile_tokens(const AttentionProblem& shape, std::int64_t rows, int threads) {
  const std::int64_t most = std::max<std::int64_t>(1, kTileRows / shape.group());
  const std::int64_t tasks = kTasksPerThread * threads;
  return std::clamp<std::int64_t>(rows * shape.kv_heads / tasks, 1, most);
}

// The work of one thread: one tile of one kv head at a time.
class WindowTile {
 public:
  WindowTile(const Problem& problem, const TileKernels& kernels, std::int64_t most_tokens)
      : problem_(problem),
        kernels_(kernels),
        panels_(problem.blocks.shape()),
        out_stride_(cpu::round_up(problem.shape.head_dim, cpu::kPanelWidth)) {
    const auto rows = static_cast<std::size_t>(most_tokens * problem.shape.group());
    queries_.resize(rows * static_cast<std::size_t>(problem.shape.head_dim));
    out_.resize(rows * static_cast<std::size_t>(out_stride_));
    top_.resize(rows);
    sum_.resize(rows);
    active_.resize(rows);
    visible_.resize(rows);
    sights_.resize(static_cast<std::size_t>(most_tokens));
  }

  void attend(RowRange tile, std::int64_t kv_head) {
    open(tile, kv_head);
    const Sight& oldest = sights_.front();
    const Sight& newest = sights_[static_cast<std::size_t>(tile.size() - 1)];
    const partition::SequenceGrid& grid = problem_.grid;
    ChunkId chunk = grid.document_of(newest.query).chunks.begin;
    for (; grid.tokens_of(chunk).begin < newest.sinks_end; ++chunk) attend_chunk(chunk, tile, kv_head);
    chunk = std::max(chunk, grid.chunk_of(oldest.window_begin));
    for (const ChunkId last = grid.chunk_of(newest.query); chunk <= last; ++chunk) attend_chunk(chunk, tile, kv_head);
    close(tile, kv_head);
  }

 private:
  void open(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    for (std::int64_t i = 0; i < tile.size(); ++i) {
      const std::int64_t row = tile.begin + i;
      const TokenId query = problem_.tokens[static_cast<std::size_t>(row)];
      sights_[static_cast<std::size_t>(i)] = {query, problem_.grid.window_of(query).begin,
                                              problem_.grid.sinks_of(query).end};
      cpu::widen_queries(kernels_, problem_.queries, row, kv_head, group, problem_.shape.scale,
                         queries_.data() + i * group * problem_.shape.head_dim);
    }
    const std::int64_t rows = tile.size() * group;
    std::fill_n(out_.begin(), rows * out_stride_, 0.0f);
    std::fill_n(top_.begin(), rows, kEmptyLse);
    std::fill_n(sum_.begin(), rows, 0.0f);
  }

  void attend_chunk(ChunkId chunk, RowRange tile, std::int64_t kv_head) {
    const Range<TokenId> slots = problem_.grid.tokens_of(chunk);
    const bool landmark = problem_.shape.landmark_slots && slots.size() == problem_.shape.chunk_size;
    const std::int64_t keys = slots.size() - (landmark ? 1 : 0);
    const std::int64_t group = problem_.shape.group();
    std::size_t count = 0;
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < tile.size(); ++i) {
      const std::int64_t visible = sights_[static_cast<std::size_t>(i)].keys_of(slots, keys);
      if (visible == 0) continue;
      most = std::max(most, visible);
      for (std::int64_t head = 0; head < group; ++head, ++count) {
        active_[count] = static_cast<std::int32_t>(i * group + head);
        visible_[count] = static_cast<std::int32_t>(visible);
      }
    }
    if (count == 0) return;
    const cpu::PackedChunk packed = panels_.pack(kernels_, problem_.blocks, chunk, kv_head, 0, most);
    kernels_.attend_online(packed, active_.data(), visible_.data(), static_cast<std::int64_t>(count),
                           {queries_.data(), out_.data(), out_stride_, top_.data(), sum_.data()}, panels_.scores());
  }

  void close(RowRange tile, std::int64_t kv_head) {
    const std::int64_t group = problem_.shape.group();
    for (std::int64_t r = 0; r < tile.size() * group; ++r) {
      const std::int64_t row = tile.begin + r / group;
      const std::int64_t head = kv_head * group + r % group;
      const float sum = sum_[static_cast<std::size_t>(r)];
      const float* gathered = out_.data() + r * out_stride_;
      float* out = problem_.out.at(row, head);
      if (sum == 0.0f) {
        std::fill_n(out, problem_.shape.head_dim, 0.0f);
        problem_.lse(row, head) = kEmptyLse;
        continue;
      }
      for (std::int64_t k = 0; k < problem_.shape.head_dim; ++k) out[k] = gathered[k] / sum;
      problem_.lse(row, head) = static_cast<float>(top_[static_cast<std::size_t>(r)] + std::log(double{sum}));
    }
  }

  const Problem& problem_;
  const TileKernels& kernels_;
  cpu::ChunkPanels panels_;
  std::int64_t out_stride_;
  cpu::AlignedFloats queries_;
  cpu::AlignedFloats out_;
  std::vector<float> top_;
  std::vector<float> sum_;
  std::vector<std::int32_t> active_;   // rows that see some key of the chunk at hand
  std::vector<std::int32_t> visible_;  // how many
  std::vector<Sight> sights_;
};

}  // namespace

void attend_window(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                   std::span<const TokenId> tokens, RowRange rows, const BlockTable& blocks, TensorView<float, 3> out,
                   TensorView<float, 2> lse, int threads) {
  require(out.stride(2) == 1, "attend_window writes rows of contiguous components");
  const Problem all{problem, grid, queries, tokens, blocks, out, lse};
  const TileKernels& kernels = cpu::tile_kernels();
  const std::int64_t most_tokens = tile_tokens(problem, rows.size(), threads);
  const std::vector<RowRange> tiles = cut_tiles(all, rows, most_tokens);
  std::vector<WindowTile> workers(static_cast<std::size_t>(threads), WindowTile(all, kernels, most_tokens));
  const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * problem.kv_heads;
  // Last tiles first: they see the most keys.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = tasks - 1; task >= 0; --task) {
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(
        tiles[static_cast<std::size_t>(task / problem.kv_heads)], task % problem.kv_heads);
  }
}

}  // namespace ringmark::kernels
