#include "kernels/chunk_masses.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/positions/alibi.h"

namespace ringmark::kernels {
namespace {

using cpu::kPanelWidth;
using cpu::TileKernels;

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  std::span<const TokenId> tokens;
  const Selection& selection;
  std::span<const ChunkId> chunks;
  const BlockTable& blocks;
  std::vector<float> slopes;  // of ALiBi, by head; empty without it
};

// Natural log of a sum that was measured from its largest term.
float log_mass(float top, float sum) {
  return sum == 0.0f ? -std::numeric_limits<float>::infinity() : static_cast<float>(top + std::log(double{sum}));
}

// The keys of one chunk that a query sees, and which of them it attends to: sinks, then what a choice adds, then the
// window. The three are disjoint and ascend.
struct Sight {
  Range<TokenId> seen;
  std::array<Range<TokenId>, 3> kept;

  Sight(const Problem& problem, TokenId query, Range<TokenId> keys, ChunkId chunk, bool chosen)
      : seen(intersect(keys, {keys.begin, query + 1})) {
    const Range<TokenId> nothing{seen.begin, seen.begin};
    kept = {intersect(seen, problem.grid.sinks_of(query)),
            chosen ? intersect(seen, problem.grid.keys_of(chunk)) : nothing,
            intersect(seen, problem.grid.window_of(query))};
  }
  std::int64_t kept_keys() const { return kept[0].size() + kept[1].size() + kept[2].size(); }
};

// The work of one thread: up to kPanelWidth queries of one head at a time. Lanes are queries.
class MassTile {
 public:
  MassTile(const Problem& problem, const TileKernels& kernels)
      : problem_(problem), kernels_(kernels), head_dim_(problem.shape.head_dim) {
    const auto chunk_size = static_cast<std::size_t>(problem.shape.chunk_size);
    const auto depth = static_cast<std::size_t>(cpu::panel_depth(head_dim_));
    widened_.resize(static_cast<std::size_t>(kPanelWidth) * depth);
    panel_.resize(static_cast<std::size_t>(kPanelWidth) * depth);
    keys_.resize(chunk_size * static_cast<std::size_t>(head_dim_));
    logits_.resize(chunk_size * static_cast<std::size_t>(kPanelWidth));
    piece_.resize(chunk_size + static_cast<std::size_t>(cpu::kRowPadding));
    for (std::size_t key = 0; key < chunk_size; ++key) {
      key_rows_.push_back(keys_.data() + key * static_cast<std::size_t>(head_dim_));
    }
  }

  void add(RowRange rows, std::int64_t head, std::span<KeyMass> masses) {
    rows_ = rows;
    head_ = head;
    const std::int64_t row_bytes = problem_.shape.heads * head_dim_ * size_of(problem_.queries.dtype);
    kernels_.pack_columns({problem_.queries.row(rows.begin, head), row_bytes, problem_.queries.dtype}, rows.size(),
                          head_dim_, problem_.shape.scale, widened_.data(), panel_.data());
    const Range<TokenId> tokens{token(rows.begin), token(rows.end - 1)};
    const ChunkId first = problem_.grid.document_of(tokens.begin).chunks.begin;
    const ChunkId last = problem_.grid.chunk_of(tokens.end);
    for (const ChunkId chunk : problem_.chunks) {
      if (first <= chunk && chunk <= last) add_chunk(chunk, masses);
    }
  }

 private:
  TokenId token(std::int64_t row) const { return problem_.tokens[static_cast<std::size_t>(row)]; }

  bool has_chosen(std::int64_t row, ChunkId chunk) const {
    if (problem_.selection.topk == 0) return false;
    const std::int64_t chooser = head_ / (problem_.shape.heads / problem_.selection.choosers);
    const auto chosen = problem_.selection.chosen(row, chooser);
    return std::binary_search(chosen.begin(), chosen.end(), chunk.value());
  }

  void add_chunk(ChunkId chunk, std::span<KeyMass> masses) {
    Range<TokenId> keys = problem_.grid.tokens_of(chunk);
    if (problem_.shape.landmark_slots && keys.size() == problem_.shape.chunk_size) keys.end = keys.end - 1;
    const Range<TokenId> document = problem_.grid.document_of(chunk).tokens;
    multiply(chunk, keys);
    float top[kPanelWidth];
    float sum[kPanelWidth];
    kernels_.sum_columns(logits_.data(), keys.size(), top, sum);
    for (std::int64_t lane = 0; lane < rows_.size(); ++lane) {
      const std::int64_t row = rows_.begin + lane;
      if (token(row) < keys.begin || !document.contains(token(row))) continue;
      const Sight sight(problem_, token(row), keys, chunk, has_chosen(row, chunk));
      KeyMass& mass = masses[static_cast<std::size_t>(row * problem_.shape.heads + head_)];
      const std::int64_t kept = sight.kept_keys();
      if (sight.seen == keys && (kept == 0 || kept == keys.size())) {
        const float whole = log_mass(top[lane], sum[lane]);
        mass.all.add(whole);
        if (kept > 0) mass.kept.add(whole);
      } else {
        add_pieces(sight, keys.begin, lane, mass);
      }
    }
  }

  void multiply(ChunkId chunk, Range<TokenId> keys) {
    const BlockShape& shape = problem_.blocks.shape();
    const std::int64_t kv_head = head_ / problem_.shape.group();
    kernels_.widen_rows({problem_.blocks.keys(chunk, kv_head), shape.row_bytes(), shape.dtype}, keys.size(), head_dim_,
                        1.0f, keys_.data());
    kernels_.multiply(key_rows_.data(), keys.size(), head_dim_, panel_.data(), logits_.data());
    const float cap = problem_.shape.logit_cap;
    if (cap > 0.0f) kernels_.cap_scores(logits_.data(), keys.size() * kPanelWidth, cap);
    if (!problem_.slopes.empty()) lean(keys);
  }

  void lean(Range<TokenId> keys) {
    const float slope = problem_.slopes[static_cast<std::size_t>(head_)];
    for (std::int64_t key = 0; key < keys.size(); ++key) {
      for (std::int64_t lane = 0; lane < rows_.size(); ++lane) {
        logits_[static_cast<std::size_t>(key * kPanelWidth + lane)] +=
            alibi_bias(slope, token(rows_.begin + lane) - (keys.begin + key));
      }
    }
  }

  // A chunk of which a query sees or attends to a part: kept pieces and the gaps between them, one by one.
  void add_pieces(const Sight& sight, TokenId origin, std::int64_t lane, KeyMass& mass) {
    TokenId next = sight.seen.begin;
    for (const Range<TokenId>& kept : sight.kept) {
      if (kept.empty()) continue;
      mass.all.add(piece(next - origin, kept.begin - origin, lane));
      const float log_kept = piece(kept.begin - origin, kept.end - origin, lane);
      mass.all.add(log_kept);
      mass.kept.add(log_kept);
      next = kept.end;
    }
    mass.all.add(piece(next - origin, sight.seen.end - origin, lane));
  }

  float piece(std::int64_t begin, std::int64_t end, std::int64_t lane) {
    for (std::int64_t key = begin; key < end; ++key) {
      piece_[static_cast<std::size_t>(key - begin)] = logits_[static_cast<std::size_t>(key * kPanelWidth + lane)];
    }
    float top;
    const float sum = kernels_.exponentiate(piece_.data(), end - begin, &top);
    return log_mass(top, sum);
  }

  const Problem& problem_;
  const TileKernels& kernels_;
  std::int64_t head_dim_;
  RowRange rows_;
  std::int64_t head_ = 0;
  cpu::AlignedFloats widened_;
  cpu::AlignedFloats panel_;   // [depth][queries]
  cpu::AlignedFloats keys_;    // [keys][head_dim] of the chunk at hand
  cpu::AlignedFloats logits_;  // [keys][queries]
  cpu::AlignedFloats piece_;   // logits of one query
  std::vector<const float*> key_rows_;
};

}  // namespace

void add_chunk_masses(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                      std::span<const TokenId> tokens, const Selection& selection, std::span<const ChunkId> chunks,
                      const BlockTable& blocks, std::span<KeyMass> masses, int threads) {
  const Problem all{problem,   grid,   queries, tokens,
                    selection, chunks, blocks,  problem.alibi ? alibi_slopes(problem.heads) : std::vector<float>()};
  const TileKernels& kernels = cpu::tile_kernels();
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t tiles = (rows + kPanelWidth - 1) / kPanelWidth;
#pragma omp parallel num_threads(threads)
  {
    MassTile tile(all, kernels);
#pragma omp for schedule(dynamic)
    for (std::int64_t task = 0; task < tiles * problem.heads; ++task) {
      const std::int64_t first = task / problem.heads * kPanelWidth;
      tile.add({first, std::min(rows, first + kPanelWidth)}, task % problem.heads, masses);
    }
  }
}

}  // namespace ringmark::kernels
