// Attention on the device. lse is the natural logarithm, fp32; a row without a visible key gives out 0, lse -inf.
#pragma once

#include "kernels/cuda/layer.h"

namespace ringmark::kernels::cuda {

// The window and the sinks, exactly, for rows [begin, end) of the rank (arrays are of the whole rank): out [rows, H, d]
// fp32, lse [rows, H]. With a window of all tokens this is exact causal attention.
void attend_window(Path path, const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream);

// Mixture weights from scores: with L = logsumexp over the chosen of s_c, and lse (the window's),
//     chosen_scores[row, head, slot] becomes s - L,   window_weight[row, head] = exp(lse - L),   lse becomes L.
// Rows without a chosen chunk: weight 1, lse unchanged. Unused slots stay -inf.
void weigh_chunks(const LayerShape& shape, RowRange rows, float* chosen_scores, float* lse, float* window_weight,
                  cudaStream_t stream);

// One chunk of a tile's union: which of the tile's queries chose it. A tile is 2 * kHalfQueries consecutive queries of
// one kv head (2 * 64 rows of query and head); half h holds queries [h, h + 1) * kHalfQueries.
struct UnionItem {
  std::int32_t chunk = 0;
  std::int32_t spare = 0;
  std::uint64_t members[2] = {0, 0};  // bit q of half h: query h * (64 / group) + q chose the chunk
};

// The unions of all tiles of rows [begin, end): tile t of kv head g at index t * kv_heads + g, tiles counted from
// `begin`. items of tile x: [offsets[x], offsets[x + 1]), chunks ascending.
struct UnionPlan {
  std::int32_t tile_queries = 0;  // 128 / group
  std::int64_t tiles = 0;         // row tiles
  const UnionItem* items = nullptr;
  const std::int64_t* offsets = nullptr;
};

// Builds the plan in two passes (count, then fill) and returns it; storage grows as needed and is kept between calls.
// Waits for the stream once, to learn the number of items.
class UnionPlanner {
 public:
  UnionPlan plan(const LayerShape& shape, const std::int32_t* selection, RowRange rows, cudaStream_t stream);
  std::int64_t items() const { return items_used_; }

 private:
  ringmark::cuda::Buffer<UnionItem> items_;
  ringmark::cuda::Buffer<std::int64_t> offsets_;
  ringmark::cuda::Buffer<std::byte> scratch_;
  std::int64_t items_used_ = 0;
};

// The family that attends chosen chunks fastest where tiles of 128 / group queries load `union_ratio` times the chunks
// of one query: wgmma multiplies every chunk of a half tile's union by 64 rows, mma.sync every chunk of a quarter of
// that by 16, slower but with less in vain where neighbours agree little. Other paths than kHopper stay as they are.
Path choose_union_path(Path path, const LayerShape& shape, double union_ratio);

// Chosen chunks: out = window_weight * out + sum over chosen c of exp(chosen_scores) * softmax inside c, in place.
// Every row walks its chunks in ascending order: the result depends on neither tile nor range.
//
// plan           of exactly these rows (tensor core paths; kSimt reads the selection alone)
// selection      [rows of the rank, Hkv, topk]; chosen_scores after weigh_chunks
void attend_chosen(Path path, const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream);

// Merge of two partial results over disjoint keys, as kernels::merge_partials: into (+)= other.
void merge_partials(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, float* into_out, float* into_lse,
                    const float* other_out, const float* other_lse, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda
