#include "runtime/cuda/selector.h"

#include <algorithm>
#include <vector>

namespace ringmark::runtime::cuda {
namespace {

using kernels::Candidate;
using kernels::CandidateLists;
using kernels::cuda::ApproximateLists;
using kernels::cuda::LandmarkTiles;
using kernels::cuda::LayerShape;
using kernels::cuda::Path;
using kernels::cuda::ScoringItem;

class Selector {
 public:
  Selector(const DeviceSelectorInput& input, Workspace& workspace, Timeline& timeline)
      : input_(input),
        shape_(input.shape),
        workspace_(workspace),
        timeline_(timeline),
        rows_(input.geometry.row_count) {
    const std::int64_t slots = rows_ * shape_.topk;
    Workspace::reserve(workspace.selection, slots * shape_.kv_heads);
    Workspace::reserve(workspace.chosen_scores, slots * shape_.heads);
  }

  ChoiceCount run() {
    const std::int64_t pairs = rows_ * shape_.kv_heads;
    return {pairs, input_.path == Path::kSimt ? choose_all_exactly() : choose_approximately()};
  }

 private:
  std::int64_t choose_approximately() {
    LandmarkTiles tiles;
    {
      const auto span = timeline_.time("score");
      tiles = split_landmarks();
    }
    const ApproximateLists lists = reserve_lists();
    unsigned long long* open_count = Workspace::reserve(workspace_.counter, 1);
    Workspace::reserve(workspace_.open_items, rows_ * shape_.kv_heads);
    workspace_.counter.fill_bytes(0, stream());
    for (std::int64_t begin = 0; begin < rows_; begin += kScoredRows) {
      const RowRange tile{begin, std::min(rows_, begin + kScoredRows)};
      {
        const auto span = timeline_.time("score");
        score_approximately(input_.path, shape_, input_.geometry, input_.queries, tile, tiles, lists, stream());
      }
      const auto span = timeline_.time("settle");
      settle_choices(shape_, input_.queries, tile, tiles, workspace_.record_table.data(), lists, workspace_.lse.data(),
                     workspace_.selection.data(), workspace_.chosen_scores.data(), workspace_.open_items.data(),
                     open_count, stream());
    }
    unsigned long long open = 0;
    workspace_.counter.download(&open, 1, stream());
    workspace_.stream.wait();
    const auto count = static_cast<std::int64_t>(open);
    const std::int64_t at_once = exact_pairs_at_once(shape_.group, shape_.topk);
    for (std::int64_t first = 0; first < count; first += at_once) {
      choose_exactly(workspace_.open_items.data() + first, std::min(at_once, count - first));
    }
    return count;
  }

  std::int64_t choose_all_exactly() {
    const std::int64_t rows_at_once =
        std::max<std::int64_t>(1, exact_pairs_at_once(shape_.group, shape_.topk) / shape_.kv_heads);
    std::vector<ScoringItem> items;
    for (std::int64_t begin = 0; begin < rows_; begin += rows_at_once) {
      items.clear();
      for (std::int64_t row = begin; row < std::min(rows_, begin + rows_at_once); ++row) {
        for (std::int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) items.push_back({row, kv_head, 0});
      }
      const auto count = static_cast<std::int64_t>(items.size());
      Workspace::reserve(workspace_.open_items, count);
      workspace_.open_items.upload(items.data(), count, stream());
      choose_exactly(workspace_.open_items.data(), count);
      workspace_.stream.wait();  // `items` is used again
    }
    return rows_ * shape_.kv_heads;
  }

  void choose_exactly(const ScoringItem* items, std::int64_t count) {
    const auto span = timeline_.time("exact");
    const std::int64_t lists = count * shape_.group;
    Candidate* candidates = Workspace::reserve(workspace_.exact_candidates, lists * shape_.topk);
    kernels::LogSum* sums = Workspace::reserve(workspace_.exact_sums, lists);
    score_exactly(shape_, input_.geometry, input_.queries, items, count, workspace_.record_table.data(), candidates,
                  sums, stream());
    select_exactly(shape_, input_.queries, items, count, workspace_.record_table.data(), candidates, sums,
                   workspace_.lse.data(), workspace_.selection.data(), workspace_.chosen_scores.data(), stream());
  }

  LandmarkTiles split_landmarks() {
    const std::int64_t heads = shape_.landmark_heads;
    LandmarkTiles tiles;
    tiles.tiles = LandmarkTiles::tiles_of(shape_.chunk_count);
    tiles.terms = Workspace::reserve(workspace_.tile_terms, LandmarkTiles::term_bytes(shape_));
    tiles.bias = Workspace::reserve(workspace_.tile_bias, heads * tiles.tiles * LandmarkTiles::kTileChunks);
    tiles.exponent_scale = Workspace::reserve(workspace_.tile_numbers, 3 * heads);
    tiles.key_norm = tiles.exponent_scale + heads;
    tiles.residual_norm = tiles.key_norm + heads;
    kernels::cuda::split_landmarks(shape_, workspace_.record_table.data(), tiles, stream());
    return tiles;
  }

  ApproximateLists reserve_lists() {
    const std::int64_t lists = std::min(rows_, kScoredRows) * shape_.heads;
    ApproximateLists reserved;
    reserved.capacity = ApproximateLists::capacity_of(shape_.topk);
    reserved.candidates = Workspace::reserve(workspace_.candidates, lists * reserved.capacity);
    reserved.cut = Workspace::reserve(workspace_.cuts, lists);
    reserved.sum = Workspace::reserve(workspace_.sums, lists);
    return reserved;
  }

  cudaStream_t stream() const { return workspace_.stream; }

  const DeviceSelectorInput& input_;
  const LayerShape& shape_;
  Workspace& workspace_;
  Timeline& timeline_;
  std::int64_t rows_;
};

}  // namespace

ChoiceCount select_with_all_landmarks(const DeviceSelectorInput& input, Workspace& workspace, Timeline& timeline) {
  return Selector(input, workspace, timeline).run();
}

ScoreRows exact_scorer(const LayerShape& shape, const partition::SequenceGrid& grid, Workspace& workspace) {
  return [&shape, &grid, &workspace](const RowsView& queries, std::span<const TokenId> tokens) {
    using ringmark::cuda::Buffer;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const std::int64_t pairs = rows * shape.kv_heads;
    CandidateLists lists(rows, shape.heads, shape.topk);
    if (rows == 0) return lists;
    std::vector<ScoringItem> items;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) items.push_back({row, kv_head, 0});
    }
    const std::vector<kernels::cuda::RowGeometry> geometry = kernels::cuda::row_geometry(grid, tokens);
    Buffer<std::byte> device_queries(queries.bytes());
    Buffer<kernels::cuda::RowGeometry> device_rows(rows);
    cudaStream_t stream = workspace.stream;
    device_queries.upload(queries.data, queries.bytes(), stream);
    device_rows.upload(geometry.data(), rows, stream);
    Workspace::reserve(workspace.open_items, pairs);
    workspace.open_items.upload(items.data(), pairs, stream);
    const std::int64_t count = rows * shape.heads;
    Workspace::reserve(workspace.exact_candidates, count * shape.topk);
    Workspace::reserve(workspace.exact_sums, count);
    score_exactly(shape, {device_rows.data(), workspace.chunks.data(), rows}, device_queries.data(),
                  workspace.open_items.data(), pairs, workspace.record_table.data(), workspace.exact_candidates.data(),
                  workspace.exact_sums.data(), stream);
    // Items in the order (row, kv head) with the heads of the group inside are the order of the lists.
    workspace.exact_candidates.download(lists.candidates.data(), count * shape.topk, stream);
    workspace.exact_sums.download(lists.sums.data(), count, stream);
    workspace.stream.wait();
    return lists;
  };
}

}  // namespace ringmark::runtime::cuda
