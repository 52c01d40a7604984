#include "kernels/landmarks.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringmark::kernels {

LandmarkShape LandmarkShape::of(const AttentionProblem& problem, Scorer scorer) {
  switch (scorer) {
    case Scorer::kHils: return {problem.heads, 1, problem.head_dim};
    case Scorer::kMean: return {problem.kv_heads, 1, problem.head_dim};
    case Scorer::kOracle: return {problem.kv_heads, problem.chunk_size, problem.head_dim};
    case Scorer::kNone: return {0, 1, problem.head_dim};
  }
  return {};
}

PackedLandmarks::PackedLandmarks(LandmarkShape shape, std::vector<ChunkId> chunks, std::span<const float> records)
    : shape_(shape), chunks_(std::move(chunks)) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto lanes = static_cast<std::int64_t>(chunks_.size()) * shape_.vectors;
  panels_ = (lanes + kPanel - 1) / kPanel;
  keys_.resize(static_cast<std::size_t>(shape_.heads * panels_ * shape_.head_dim));
  PanelRow unused;
  std::fill_n(unused.lanes, kPanel, -kInfinity);
  bias_.assign(static_cast<std::size_t>(shape_.heads * panels_), unused);

  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const float* record = records.data() + lane / shape_.vectors * shape_.record_floats();
      const float* key = record + (head * shape_.vectors + lane % shape_.vectors) * shape_.head_dim;
      if (shape_.vectors > 1 && key[0] == kInfinity) continue;  // an unused vector
      PanelRow* components = &keys_[static_cast<std::size_t>((head * panels_ + lane / kPanel) * shape_.head_dim)];
      for (std::int64_t i = 0; i < shape_.head_dim; ++i) components[i].lanes[lane % kPanel] = key[i];
      PanelRow& bias = bias_[static_cast<std::size_t>(head * panels_ + lane / kPanel)];
      bias.lanes[lane % kPanel] = record[shape_.bias_offset() + head];
    }
  }
}

}  // namespace ringmark::kernels
