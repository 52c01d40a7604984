// Up to kPanelWidth (row, query head) pairs of one kv head side by side, and the derivative of their softmax over the
// keys of one chunk: what both backward kernels, for the rows and for the keys, are made of. One per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/tensor.h"
#include "kernels/attend_backward.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/gradient_tile.h"

namespace ringmark::kernels::cpu {

// The keys and values of one (chunk, kv head), widened.
class WideChunk {
 public:
  explicit WideChunk(const BlockShape& shape);
  WideChunk(const WideChunk&) = delete;
  WideChunk(WideChunk&&) = default;

  // The first `count` slots of the block; no other is read.
  void load(const TileKernels& kernels, const BlockTable& blocks, ChunkId chunk, std::int64_t kv_head,
            std::int64_t count);

  const float* const* keys() const { return key_rows_.data(); }
  const float* const* values() const { return value_rows_.data(); }
  // Columns [column, column + 32) of the keys from `first` on: [keys][32], zero past head_dim.
  const float* key_panel(std::int64_t column, std::int64_t first) const {
    return key_panels_.data() + column * count_ + first * kPanelWidth;
  }

 private:
  BlockShape shape_;
  std::int64_t count_ = 0;
  AlignedFloats keys_;
  AlignedFloats values_;
  AlignedFloats key_panels_;
  std::vector<const float*> key_rows_;
  std::vector<const float*> value_rows_;
};

struct Lane {
  std::int64_t row = 0;
  std::int64_t head = 0;  // of the group
  std::int64_t keys = 0;  // of the window: how many it sees
};

class GradientLanes {
 public:
  explicit GradientLanes(const BackwardRows& rows);
  GradientLanes(const GradientLanes&) = delete;
  GradientLanes(GradientLanes&&) = default;

  // These lanes, at most kPanelWidth, attend to the first keys of a chunk in their window.
  void attend_window(const WideChunk& chunk, std::int64_t kv_head, std::span<const Lane> lanes);
  // These lanes chose a chunk whose keys are slots [first, first + keys).
  void attend_chosen(const WideChunk& chunk, std::int64_t kv_head, std::span<const Lane> lanes, std::int64_t first,
                     std::int64_t keys, const LandmarkShape& landmark_shape, const float* landmark);

  // What the keys do to the queries: dq += a ds k.
  void add_to_queries(const WideChunk& chunk, TensorView<float, 3> query_gradient);
  // What the landmark does to the scoring queries: dq~ += a ds k'. After attend_chosen().
  void add_to_scoring_queries(TensorView<float, 3> scoring_gradient) const;
  // What the lanes do to keys and values, [slots][column_floats()]: dk += a ds q, dv += p g.
  void add_to_keys(float* key_gradient, float* value_gradient);
  // What the lanes do to the landmark: dk' += a ds q~, db' += ds. After attend_chosen().
  void add_to_landmark(const GradientShape& shape, float* record) const;

  // head_dim in whole panels.
  std::int64_t column_floats() const { return columns_; }

 private:
  void open(std::int64_t kv_head, std::span<const Lane> lanes, std::int64_t first, std::int64_t keys);
  void multiply(const WideChunk& chunk);
  void weigh(const LandmarkShape& shape, const float* landmark);
  std::int64_t head(std::size_t lane) const { return first_head_ + lanes_[lane].head; }
  std::size_t landmark_head(std::size_t lane) const {
    return landmark_heads_ == 1 ? 0 : static_cast<std::size_t>(lanes_[lane].head);
  }

  const BackwardRows& rows_;
  const TileKernels& tile_;
  const GradientKernels& gradient_;
  std::int64_t head_dim_;
  std::int64_t columns_;
  std::int64_t first_head_ = 0;
  std::int64_t landmark_heads_ = 0;  // of the kv head
  std::span<const Lane> lanes_;
  std::int64_t first_ = 0;  // slots of the chunk that are differentiated
  std::int64_t keys_ = 0;

  AlignedFloats queries_;          // [32][head_dim] a q
  AlignedFloats scoring_queries_;  // [32][head_dim] a q~
  AlignedFloats out_gradients_;    // [32][head_dim] g
  AlignedFloats widened_;          // scratch of packing
  AlignedFloats panel_;            // lanes as columns, of one of the three
  AlignedFloats row_panels_;       // [columns / 32][32 lanes][32], of one of the three
  AlignedFloats weights_;          // [keys][32] s, then p
  AlignedFloats score_gradients_;  // [keys][32] g . v, then ds
  AlignedFloats landmark_scores_;  // [landmark heads][32]
  AlignedFloats transposed_;       // [32][keys] a ds
  AlignedFloats sums_;             // [32][columns]
  std::vector<const float*> landmark_keys_;
  std::vector<const float*> weight_rows_;  // by key
  std::vector<const float*> slope_rows_;   // by key, of score_gradients_
  alignas(64) float lse_[kPanelWidth];
  alignas(64) float delta_[kPanelWidth];
  alignas(64) float visible_[kPanelWidth];
  alignas(64) float share_[kPanelWidth];        // w_ic of every lane
  alignas(64) float score_slope_[kPanelWidth];  // ds_ic of every lane
};

}  // namespace ringmark::kernels::cpu
