#include "kernels/landmarks.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringmark::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

LandmarkShape LandmarkShape::of(const AttentionProblem& problem, Scorer scorer) {
  switch (scorer) {
    case Scorer::kHils: return {problem.heads, 1, problem.head_dim};
    case Scorer::kMean: return {problem.kv_heads, 1, problem.head_dim};
    case Scorer::kOracle: return {problem.kv_heads, problem.chunk_size, problem.head_dim, problem.logit_cap};
    case Scorer::kLandmark: return {problem.kv_heads, 1, problem.head_dim};
    case Scorer::kQuest: return {problem.kv_heads, 1, 2 * problem.head_dim};
    case Scorer::kNone: return {0, 1, problem.head_dim};
  }
  return {};
}

PackedLandmarks::PackedLandmarks(LandmarkShape shape, std::vector<ChunkId> chunks)
    : shape_(shape), chunks_(std::move(chunks)) {
  const auto lanes = static_cast<std::int64_t>(chunks_.size()) * shape_.vectors;
  panels_ = (lanes + kPanel - 1) / kPanel;
  keys_.resize(static_cast<std::size_t>(shape_.heads * panels_ * shape_.head_dim));
  PanelRow unused;
  std::fill_n(unused.lanes, kPanel, -kInfinity);
  bias_.assign(static_cast<std::size_t>(shape_.heads * panels_), unused);
}

PackedLandmarks::PackedLandmarks(LandmarkShape shape, std::vector<ChunkId> chunks, std::span<const float> records)
    : PackedLandmarks(shape, std::move(chunks)) {
  const auto floats = static_cast<std::size_t>(shape_.record_floats());
  // The panel of one head stays in the L1 cache while its chunks are written.
  for (std::int64_t head = 0; head < shape_.heads; ++head) {
    for (std::size_t n = 0; n < chunks_.size(); ++n) {
      set(head, static_cast<std::int64_t>(n), records.subspan(n * floats, floats));
    }
  }
}

void PackedLandmarks::set(std::int64_t position, std::span<const float> record) {
  for (std::int64_t head = 0; head < shape_.heads; ++head) set(head, position, record);
}

void PackedLandmarks::set(std::int64_t head, std::int64_t position, std::span<const float> record) {
  const float* key = record.data() + head * shape_.vectors * shape_.head_dim;
  for (std::int64_t vector = 0; vector < shape_.vectors; ++vector, key += shape_.head_dim) {
    if (shape_.vectors > 1 && key[0] == kInfinity) continue;  // an unused vector
    const std::int64_t lane = position * shape_.vectors + vector;
    const std::int64_t panel = head * panels_ + lane / kPanel;
    PanelRow* components = &keys_[static_cast<std::size_t>(panel * shape_.head_dim)];
    for (std::int64_t i = 0; i < shape_.head_dim; ++i) components[i].lanes[lane % kPanel] = key[i];
    bias_[static_cast<std::size_t>(panel)].lanes[lane % kPanel] =
        record[static_cast<std::size_t>(shape_.bias_offset() + head)];
  }
}

}  // namespace ringmark::kernels
