#include "kernels/attend_dilated.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/online_tile.h"

namespace ringmark::kernels {
namespace {

// Rows that take part in one segment for the same heads, ascending.
struct Tile {
  Range<TokenId> segment;
  std::int64_t residue = 0;  // of these heads, and of the rows' places in the segment
  std::vector<std::int64_t> rows;
};

std::vector<Tile> cut_tiles(const CausalQueries& queries, const Dilation& dilation, std::int64_t most_rows) {
  std::vector<Tile> tiles;
  const std::int64_t residues = std::min(dilation.rate, queries.queries.heads);  // that some head has
  std::vector<std::ptrdiff_t> open(static_cast<std::size_t>(residues), -1);      // the tile that grows, by residue
  Range<TokenId> segment;
  for (std::int64_t row = 0; row < queries.queries.rows; ++row) {
    const TokenId token = queries.tokens[static_cast<std::size_t>(row)];
    if (!segment.contains(token)) {
      segment = segment_of(queries.grid, dilation, token);
      std::fill(open.begin(), open.end(), -1);
    }
    const std::int64_t residue = (token - segment.begin) % dilation.rate;
    if (residue >= residues) continue;
    std::ptrdiff_t& at = open[static_cast<std::size_t>(residue)];
    if (at < 0 || std::ssize(tiles[static_cast<std::size_t>(at)].rows) == most_rows) {
      at = std::ssize(tiles);
      tiles.push_back({segment, residue, {}});
    }
    tiles[static_cast<std::size_t>(at)].rows.push_back(row);
  }
  return tiles;
}

struct Task {
  const Tile* tile;
  std::int64_t head;
  std::span<const Range<TokenId>> stretches;  // of its segment, that its last row has reached
};

std::vector<Task> list_tasks(const std::vector<Tile>& tiles, const CausalQueries& queries, const Dilation& dilation,
                             std::span<const Range<TokenId>> stretches) {
  std::vector<Task> tasks;
  const auto begins_before = [](const Range<TokenId>& stretch, TokenId token) { return stretch.begin < token; };
  for (const Tile& tile : tiles) {
    const TokenId newest = queries.tokens[static_cast<std::size_t>(tile.rows.back())];
    const auto first = std::lower_bound(stretches.begin(), stretches.end(), tile.segment.begin, begins_before);
    const auto end = std::lower_bound(first, stretches.end(), newest + 1, begins_before);
    if (first == end) continue;
    for (std::int64_t head = tile.residue; head < queries.queries.heads; head += dilation.rate) {
      tasks.push_back({&tile, head, {first, end}});
    }
  }
  return tasks;
}

// The work of one thread: one tile for one head at a time. What takes part is packed, rows of one head as queries and
// keys and values as one block, and then attended to like any other tile and chunk.
class DilatedTile {
 public:
  DilatedTile(const CausalQueries& queries, std::int64_t rate, const BlockTable& blocks, const OpenSoftmax& softmax,
              std::int64_t most_rows)
      : queries_(queries),
        rate_(rate),
        blocks_(blocks),
        softmax_(softmax),
        shape_{kStretchKeys, blocks.shape().head_dim, blocks.shape().dtype},
        packed_queries_(
            static_cast<std::size_t>(most_rows * queries.queries.head_dim * size_of(queries.queries.dtype))),
        packed_block_(static_cast<std::size_t>(shape_.bytes())),
        packed_(shape_, 1, queries.problem.kv_heads),
        tile_(cpu::tile_kernels(), packed_problem(queries.problem), most_rows, rate) {}

  void attend(const Task& task, std::int64_t kv_head) {
    const std::vector<std::int64_t>& rows = task.tile->rows;
    open(rows, task.head, kv_head);
    const TokenId newest = token_of(rows.back());
    for (const Range<TokenId>& stretch : task.stretches) {
      attend_stretch({stretch.begin + task.tile->residue, std::min(stretch.end, newest + 1)}, rows, kv_head);
    }
    for_each_row(rows, task.head, [this](std::int64_t r, float* out, float& top, float& sum) {
      std::copy_n(tile_.out(r), shape_.head_dim, out);
      top = tile_.top(r);
      sum = tile_.sum(r);
    });
  }

 private:
  // Of the layer, but that what takes part of a stretch is a chunk.
  static AttentionProblem packed_problem(AttentionProblem problem) {
    problem.chunk_size = kStretchKeys;
    return problem;
  }
  TokenId token_of(std::int64_t row) const { return queries_.tokens[static_cast<std::size_t>(row)]; }

  void open(const std::vector<std::int64_t>& rows, std::int64_t head, std::int64_t kv_head) {
    const RowsView& all = queries_.queries;
    const auto row_bytes = static_cast<std::size_t>(all.head_dim * size_of(all.dtype));
    for (std::size_t n = 0; n < rows.size(); ++n) {
      std::memcpy(packed_queries_.data() + n * row_bytes, all.row(rows[n], head), row_bytes);
    }
    const RowsView packed{packed_queries_.data(), all.dtype, std::ssize(rows), 1, all.head_dim};
    tile_.open(packed, {0, packed.rows}, {kv_head, 0, 1}, head);
    for_each_row(rows, head, [this](std::int64_t r, float* out, float& top, float& sum) {
      std::copy_n(out, shape_.head_dim, tile_.out(r));
      tile_.top(r) = top;
      tile_.sum(r) = sum;
    });
  }

  // Every rate-th token of the range. Packed keys are equally far from each other, which ALiBi relies on: there, keys
  // on either side of a landmark slot are packed apart.
  void attend_stretch(Range<TokenId> tokens, const std::vector<std::int64_t>& rows, std::int64_t kv_head) {
    if (tokens.empty()) return;
    const auto row_bytes = static_cast<std::size_t>(shape_.row_bytes());
    const partition::Document& document = queries_.grid.document_of(tokens.begin);
    packed_.set(ChunkId(0), kv_head, packed_block_.data());
    for (TokenId token = tokens.begin; token < tokens.end; token = token + rate_) {
      if (!queries_.grid.is_key(token)) {
        if (queries_.problem.alibi) attend_packed(rows);
        continue;
      }
      const std::int64_t place = token - document.tokens.begin;
      const ChunkId chunk = document.chunks.begin + place / queries_.grid.chunk_size();
      const std::int64_t offset = place % queries_.grid.chunk_size() * shape_.row_bytes();
      std::byte* to = packed_block_.data() + keys_.size() * row_bytes;
      std::memcpy(to, blocks_.keys(chunk, kv_head) + offset, row_bytes);
      std::memcpy(to + shape_.value_offset(), blocks_.values(chunk, kv_head) + offset, row_bytes);
      keys_.push_back(token);
    }
    attend_packed(rows);
  }

  // Rows attend to what is packed, which is then gone.
  void attend_packed(const std::vector<std::int64_t>& rows) {
    if (keys_.empty()) return;
    tile_.attend(packed_, ChunkId(0), [&](std::int64_t n) {
      const TokenId query = token_of(rows[static_cast<std::size_t>(n)]);
      const auto visible = std::upper_bound(keys_.begin(), keys_.end(), query) - keys_.begin();
      return cpu::KeyRun{0, visible, (query - keys_.front()) / rate_};
    });
    keys_.clear();
  }

  template <class Visit>
  void for_each_row(const std::vector<std::int64_t>& rows, std::int64_t head, Visit visit) {
    for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
      const std::int64_t row = rows[static_cast<std::size_t>(r)];
      visit(r, softmax_.out.at(row, head), softmax_.top(row, head), softmax_.sum(row, head));
    }
  }

  const CausalQueries& queries_;
  std::int64_t rate_;
  const BlockTable& blocks_;
  const OpenSoftmax& softmax_;
  BlockShape shape_;
  std::vector<std::byte> packed_queries_;
  std::vector<std::byte> packed_block_;
  BlockTable packed_;          // of that block alone
  std::vector<TokenId> keys_;  // in it
  cpu::OnlineTile tile_;
};

}  // namespace

void attend_dilated(const CausalQueries& queries, const Dilation& dilation, std::span<const Range<TokenId>> stretches,
                    const BlockTable& blocks, const OpenSoftmax& softmax, int threads) {
  require(softmax.out.stride(2) == 1, "attend_dilated writes rows of contiguous components");
  const std::int64_t pairs = queries.queries.rows * queries.queries.heads / dilation.rate;
  const std::int64_t most_rows = cpu::tile_tokens(pairs, 1, threads);
  const std::vector<Tile> tiles = cut_tiles(queries, dilation, most_rows);
  const std::vector<Task> tasks = list_tasks(tiles, queries, dilation, stretches);
  if (tasks.empty()) return;
  std::vector<DilatedTile> workers(static_cast<std::size_t>(threads),
                                   DilatedTile(queries, dilation.rate, blocks, softmax, most_rows));
  // Last tiles first: they see the most keys.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t n = std::ssize(tasks) - 1; n >= 0; --n) {
    const Task& task = tasks[static_cast<std::size_t>(n)];
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend(task, task.head / queries.problem.group());
  }
}

}  // namespace ringmark::kernels
