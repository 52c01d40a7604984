#include "kernels/cpu/gradient_lanes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ringmark::kernels::cpu {
namespace {

std::size_t floats(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

StoredRows stored(const AlignedFloats& rows, std::int64_t head_dim) {
  return {reinterpret_cast<const std::byte*>(rows.data()), head_dim * static_cast<std::int64_t>(sizeof(float)),
          DType::kFloat32};
}

}  // namespace

WideChunk::WideChunk(const BlockShape& shape)
    : shape_(shape),
      keys_(floats(shape.chunk_size, shape.head_dim)),
      values_(floats(shape.chunk_size, shape.head_dim)),
      key_panels_(floats(shape.chunk_size, round_up(shape.head_dim, kPanelWidth))) {
  for (std::int64_t j = 0; j < shape.chunk_size; ++j) {
    key_rows_.push_back(keys_.data() + j * shape.head_dim);
    value_rows_.push_back(values_.data() + j * shape.head_dim);
  }
}

void WideChunk::load(const TileKernels& kernels, const BlockTable& blocks, ChunkId chunk, std::int64_t kv_head,
                     std::int64_t count) {
  count_ = count;
  const StoredRows keys{blocks.keys(chunk, kv_head), shape_.row_bytes(), shape_.dtype};
  const StoredRows values{blocks.values(chunk, kv_head), shape_.row_bytes(), shape_.dtype};
  kernels.widen_rows(keys, count, shape_.head_dim, 1.0f, keys_.data());
  kernels.widen_rows(values, count, shape_.head_dim, 1.0f, values_.data());
  kernels.pack_values(keys, count, shape_.head_dim, key_panels_.data());
}

GradientLanes::GradientLanes(const BackwardRows& rows)
    : rows_(rows),
      tile_(tile_kernels()),
      gradient_(gradient_kernels()),
      head_dim_(rows.problem.head_dim),
      columns_(round_up(head_dim_, kPanelWidth)),
      queries_(floats(kPanelWidth, head_dim_)),
      scoring_queries_(floats(kPanelWidth, head_dim_)),
      out_gradients_(floats(kPanelWidth, head_dim_)),
      widened_(floats(kPanelWidth, panel_depth(head_dim_))),
      panel_(floats(kPanelWidth, panel_depth(head_dim_))),
      row_panels_(floats(kPanelWidth, columns_)),
      weights_(floats(rows.problem.chunk_size, kPanelWidth)),
      score_gradients_(floats(rows.problem.chunk_size, kPanelWidth)),
      landmark_scores_(floats(rows.problem.group(), kPanelWidth)),
      transposed_(floats(kPanelWidth, rows.problem.chunk_size)),
      sums_(floats(kPanelWidth, columns_)) {
  for (std::int64_t j = 0; j < rows.problem.chunk_size; ++j) {
    weight_rows_.push_back(weights_.data() + j * kPanelWidth);
    slope_rows_.push_back(score_gradients_.data() + j * kPanelWidth);
  }
}

// Lanes that are not there see nothing and weigh nothing.
void GradientLanes::open(std::int64_t kv_head, std::span<const Lane> lanes, std::int64_t first, std::int64_t keys) {
  first_head_ = kv_head * rows_.problem.group();
  lanes_ = lanes;
  first_ = first;
  keys_ = keys;
  std::fill_n(lse_, kPanelWidth, 0.0f);
  std::fill_n(delta_, kPanelWidth, 0.0f);
  std::fill_n(visible_, kPanelWidth, 0.0f);
  std::fill_n(share_, kPanelWidth, 0.0f);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::int64_t row = lanes[lane].row;
    const auto place = static_cast<std::int64_t>(lane) * head_dim_;
    const std::int64_t row_bytes = head_dim_ * size_of(rows_.queries.dtype);
    tile_.widen_rows({rows_.queries.row(row, head(lane)), row_bytes, rows_.queries.dtype}, 1, head_dim_,
                     rows_.problem.scale, queries_.data() + place);
    std::copy_n(rows_.out_gradient.at(row, head(lane)), head_dim_, out_gradients_.data() + place);
    lse_[lane] = rows_.lse(row, head(lane));
    delta_[lane] = rows_.delta(row, head(lane));
    visible_[lane] = static_cast<float>(lanes[lane].keys);
  }
}

// Scores, and products of out gradients with values: [keys][32] each.
void GradientLanes::multiply(const WideChunk& chunk) {
  const auto lanes = static_cast<std::int64_t>(lanes_.size());
  tile_.pack_columns(stored(queries_, head_dim_), lanes, head_dim_, 1.0f, widened_.data(), panel_.data());
  tile_.multiply(chunk.keys() + first_, keys_, head_dim_, panel_.data(), weights_.data());
  tile_.pack_columns(stored(out_gradients_, head_dim_), lanes, head_dim_, 1.0f, widened_.data(), panel_.data());
  tile_.multiply(chunk.values() + first_, keys_, head_dim_, panel_.data(), score_gradients_.data());
}

void GradientLanes::attend_window(const WideChunk& chunk, std::int64_t kv_head, std::span<const Lane> lanes) {
  std::int64_t keys = 0;
  for (const Lane& lane : lanes) keys = std::max(keys, lane.keys);
  open(kv_head, lanes, 0, keys);
  multiply(chunk);
  gradient_.differentiate_window(keys_, visible_, lse_, delta_, weights_.data(), score_gradients_.data());
}

void GradientLanes::attend_chosen(const WideChunk& chunk, std::int64_t kv_head, std::span<const Lane> lanes,
                                  std::int64_t first, std::int64_t keys, const LandmarkShape& landmark_shape,
                                  const float* landmark) {
  open(kv_head, lanes, first, keys);
  weigh(landmark_shape, landmark);
  multiply(chunk);
  alignas(64) float mean[kPanelWidth];  // delta_ic
  gradient_.differentiate_chosen(keys_, share_, weights_.data(), score_gradients_.data(), mean);
  for (std::int64_t lane = 0; lane < kPanelWidth; ++lane) {
    score_slope_[lane] = share_[lane] * (mean[lane] - delta_[lane]);
  }
}

// w_ic = e^(s_ic - L_i), with the scores of score_chunks to the bit.
void GradientLanes::weigh(const LandmarkShape& shape, const float* landmark) {
  landmark_heads_ = shape.heads / rows_.problem.kv_heads;
  const std::int64_t first = shape.head_of(first_head_, rows_.problem.heads);
  landmark_keys_.clear();
  for (std::int64_t n = 0; n < landmark_heads_; ++n) landmark_keys_.push_back(landmark + (first + n) * head_dim_);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const RowsView& rows = rows_.scoring_queries;
    tile_.widen_rows({rows.row(lanes_[lane].row, head(lane)), head_dim_ * size_of(rows.dtype), rows.dtype}, 1,
                     head_dim_, rows_.problem.scale,
                     scoring_queries_.data() + static_cast<std::int64_t>(lane) * head_dim_);
  }
  tile_.pack_columns(stored(scoring_queries_, head_dim_), std::ssize(lanes_), head_dim_, 1.0f, widened_.data(),
                     panel_.data());
  tile_.multiply(landmark_keys_.data(), landmark_heads_, head_dim_, panel_.data(), landmark_scores_.data());
  const float* const biases = landmark + shape.bias_offset() + first;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::size_t n = landmark_head(lane);
    const float score = landmark_scores_[n * kPanelWidth + lane] + biases[n];
    share_[lane] = std::exp(score - lse_[lane]);
  }
}

void GradientLanes::add_to_queries(const WideChunk& chunk, TensorView<float, 3> query_gradient) {
  gradient_.transpose(keys_, rows_.problem.scale, score_gradients_.data(), transposed_.data(), keys_);
  const float* slopes[kPanelWidth];
  std::fill(sums_.begin(), sums_.end(), 0.0f);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    slopes[lane] = transposed_.data() + static_cast<std::int64_t>(lane) * keys_;
    std::copy_n(query_gradient.at(lanes_[lane].row, head(lane)), head_dim_,
                sums_.data() + static_cast<std::int64_t>(lane) * columns_);
  }
  for (std::int64_t column = 0; column < head_dim_; column += kPanelWidth) {
    gradient_.multiply_add(slopes, std::ssize(lanes_), keys_, chunk.key_panel(column, first_), sums_.data() + column,
                           columns_);
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    std::copy_n(sums_.data() + static_cast<std::int64_t>(lane) * columns_, head_dim_,
                query_gradient.at(lanes_[lane].row, head(lane)));
  }
}

void GradientLanes::add_to_scoring_queries(TensorView<float, 3> scoring_gradient) const {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const float slope = rows_.problem.scale * score_slope_[lane];
    const float* const key = landmark_keys_[landmark_head(lane)];
    float* const into = scoring_gradient.at(lanes_[lane].row, head(lane));
    for (std::int64_t x = 0; x < head_dim_; ++x) into[x] = std::fma(slope, key[x], into[x]);
  }
}

void GradientLanes::add_to_keys(float* key_gradient, float* value_gradient) {
  const auto lanes = static_cast<std::int64_t>(lanes_.size());
  const auto add = [&](const AlignedFloats& rows, const std::vector<const float*>& factors, float* into) {
    tile_.pack_values(stored(rows, head_dim_), lanes, head_dim_, row_panels_.data());
    for (std::int64_t column = 0; column < head_dim_; column += kPanelWidth) {
      gradient_.multiply_add(factors.data(), keys_, lanes, row_panels_.data() + column * lanes,
                             into + first_ * columns_ + column, columns_);
    }
  };
  add(queries_, slope_rows_, key_gradient);
  add(out_gradients_, weight_rows_, value_gradient);
}

void GradientLanes::add_to_landmark(const GradientShape& shape, float* record) const {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto n = static_cast<std::int64_t>(landmark_head(lane));
    const float* const query = scoring_queries_.data() + static_cast<std::int64_t>(lane) * head_dim_;
    float* const key = record + shape.landmark_keys_at() + n * head_dim_;
    for (std::int64_t x = 0; x < head_dim_; ++x) key[x] = std::fma(score_slope_[lane], query[x], key[x]);
    record[shape.landmark_biases_at() + n] += score_slope_[lane];
  }
}

}  // namespace ringmark::kernels::cpu
