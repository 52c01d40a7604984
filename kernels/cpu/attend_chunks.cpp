#include "kernels/attend_chunks.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/chunk_panels.h"
#include "kernels/cpu/chunk_union.h"
#include "kernels/cpu/chunk_weights.h"
#include "kernels/cpu/tile_queries.h"
#include "kernels/head_group.h"

namespace ringmark::kernels {
namespace {

using cpu::TileKernels;

constexpr std::int64_t kTileTokens = 64;
constexpr std::int64_t kTileRows = 512;                       // (query, head) rows
constexpr std::int64_t kTileWeights = std::int64_t{1} << 19;  // 2 MiB a thread
constexpr std::int64_t kTasksPerThread = 4;

struct Problem {
  const AttentionProblem& shape;
  const partition::SequenceGrid& grid;
  const RowsView& queries;
  const RowsView& retrieval_queries;
  const Selection& selection;
  const BlockTable& blocks;
  const LandmarkRecords& landmarks;
  TensorView<float, 3> out;
  TensorView<float, 2> lse;
  const CachedRows* cached;
};

std::int64_t tile_tokens(const Problem& problem, std::int64_t rows, std::int64_t groups, int threads) {
  const std::int64_t group = problem.shape.heads / groups;
  const std::int64_t weights = group * (problem.selection.topk + cpu::kRowPadding);
  const std::int64_t most = std::min({kTileTokens, kTileRows / group, kTileWeights / weights});
  const std::int64_t tasks = kTasksPerThread * threads;
  return std::max<std::int64_t>(1, std::min(most, rows * groups / tasks));
}

// The work of one thread: one tile of one group of heads at a time.
class ChunkTile {
 public:
  ChunkTile(const Problem& problem, const TileKernels& kernels, std::int64_t most_tokens, std::int64_t most_heads)
      : problem_(problem),
        kernels_(kernels),
        panels_(problem.blocks.shape()),
        chosen_(most_tokens, problem.selection.topk),
        weights_(problem.shape, problem.landmarks, problem.cached, most_tokens, most_heads, problem.selection.topk),
        out_stride_(cpu::round_up(problem.shape.head_dim, cpu::kPanelWidth)) {
    const auto rows = static_cast<std::size_t>(most_tokens * most_heads);
    queries_.resize(rows * static_cast<std::size_t>(problem.shape.head_dim));
    if (problem.cached != nullptr) turned_.resize(queries_.size());
    out_.resize(rows * static_cast<std::size_t>(out_stride_));
    active_.resize(rows);
    active_weights_.resize(rows);
  }

  void attend(RowRange tile, const ChoosingHeads& choosing) {
    chosen_.gather(problem_.selection, tile, choosing.chooser);
    if (chosen_.size() == 0) return;
    open(tile, choosing.heads);
    for (std::int64_t i = 0; i < chosen_.size(); ++i) attend_chunk(tile, i, choosing.heads);
    close(tile, choosing.heads);
  }

 private:
  void open(RowRange tile, const HeadGroup& group) {
    weights_.weigh(kernels_, problem_.retrieval_queries, tile, group, chosen_, problem_.lse);
    for (std::int64_t i = 0; i < tile.size(); ++i) {
      if (chosen_.chosen_by(i) == 0) continue;
      cpu::widen_queries(kernels_, problem_.queries, tile.begin + i, group, problem_.shape.scale,
                         queries_.data() + i * group.heads * problem_.shape.head_dim);
      for (std::int64_t head = 0; head < group.heads; ++head) {
        load_window(problem_.out.at(tile.begin + i, group.first_head + head), weights_.window(i, head),
                    out_.data() + (i * group.heads + head) * out_stride_);
      }
    }
  }

  // An empty window has weight 0, and its result may be anything.
  void load_window(const float* window, float weight, float* out) const {
    std::fill_n(out, out_stride_, 0.0f);
    if (weight == 0.0f) return;
    for (std::int64_t k = 0; k < problem_.shape.head_dim; ++k) out[k] = weight * window[k];
  }

  void attend_chunk(RowRange tile, std::int64_t i, const HeadGroup& group) {
    const ChunkId chunk = chosen_.chunk(i);
    std::size_t count = 0;
    for (const cpu::ChunkUnion::Member& member : chosen_.members(i)) {
      for (std::int64_t head = 0; head < group.heads; ++head, ++count) {
        active_[count] = static_cast<std::int32_t>(member.row * group.heads + head);
        active_weights_[count] = weights_.chunk(member, head);
      }
    }
    const Range<TokenId> keys = problem_.grid.keys_of(chunk);
    const std::int64_t first = keys.begin - problem_.grid.tokens_of(chunk).begin;
    const cpu::PackedChunk packed = panels_.pack(kernels_, problem_.blocks, chunk, group.kv_head, first, keys.size());
    if (problem_.cached != nullptr) turn_members(tile, i, group);
    const cpu::AlignedFloats& queries = problem_.cached != nullptr ? turned_ : queries_;
    kernels_.attend_weighted(packed, active_.data(), active_weights_.data(), static_cast<std::int64_t>(count),
                             {queries.data(), out_.data(), out_stride_, nullptr, nullptr}, problem_.shape.logit_cap,
                             panels_.scores());
  }

  // Every row that chose the chunk meets it where the row's own cache has it.
  void turn_members(RowRange tile, std::int64_t i, const HeadGroup& group) {
    const std::int64_t width = group.heads * problem_.shape.head_dim;
    for (const cpu::ChunkUnion::Member& member : chosen_.members(i)) {
      float* const turned = turned_.data() + member.row * width;
      std::copy_n(queries_.data() + member.row * width, width, turned);
      const TokenId query = problem_.cached->tokens[static_cast<std::size_t>(tile.begin + member.row)];
      problem_.cached->positions.meet_chunk(query, chosen_.chunk(i), member.slot,
                                            {turned, static_cast<std::size_t>(width)});
    }
  }

  void close(RowRange tile, const HeadGroup& group) {
    for (std::int64_t i = 0; i < tile.size(); ++i) {
      if (chosen_.chosen_by(i) == 0) continue;
      for (std::int64_t head = 0; head < group.heads; ++head) {
        std::copy_n(out_.data() + (i * group.heads + head) * out_stride_, problem_.shape.head_dim,
                    problem_.out.at(tile.begin + i, group.first_head + head));
      }
    }
  }

  const Problem& problem_;
  const TileKernels& kernels_;
  cpu::ChunkPanels panels_;
  cpu::ChunkUnion chosen_;
  cpu::ChunkWeights weights_;
  std::int64_t out_stride_;
  cpu::AlignedFloats queries_;
  cpu::AlignedFloats turned_;  // queries_ as they meet the chunk at hand; only with cached rows
  cpu::AlignedFloats out_;
  std::vector<std::int32_t> active_;  // rows that chose the chunk at hand
  std::vector<float> active_weights_;
};

}  // namespace

void attend_chunks(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                   const RowsView& retrieval_queries, const Selection& selection, RowRange rows,
                   const BlockTable& blocks, const LandmarkRecords& landmarks, TensorView<float, 3> out,
                   TensorView<float, 2> lse, int threads, const CachedRows* cached) {
  require(out.stride(2) == 1, "attend_chunks writes rows of contiguous components");
  if (rows.empty() || selection.topk == 0) return;
  const Problem all{problem, grid, queries, retrieval_queries, selection, blocks, landmarks, out, lse, cached};
  const TileKernels& kernels = cpu::tile_kernels();
  const std::vector<ChoosingHeads> choosing = choosing_heads(problem, selection.choosers);
  const auto groups = static_cast<std::int64_t>(choosing.size());
  const std::int64_t most_tokens = tile_tokens(all, rows.size(), groups, threads);
  std::vector<ChunkTile> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) workers.emplace_back(all, kernels, most_tokens, problem.heads / groups);
  const std::int64_t tasks = (rows.size() + most_tokens - 1) / most_tokens * groups;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t first = rows.begin + task / groups * most_tokens;
    workers[static_cast<std::size_t>(omp_get_thread_num())].attend({first, std::min(rows.end, first + most_tokens)},
                                                                   choosing[static_cast<std::size_t>(task % groups)]);
  }
}

}  // namespace ringmark::kernels
