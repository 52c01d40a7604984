#include "kernels/cpu/chunk_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringmark::kernels::cpu {
namespace {

constexpr std::int64_t kBatch = 42;  // chunks a product: whole register tiles of 6 and of 14 rows
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

// Up to kPanelWidth rows of one query head, packed in panel_.
struct ChunkWeights::HeadRows {
  std::int64_t head;  // of the group
  std::int64_t query_head;
  std::int64_t landmark_head;
  std::int64_t tile;   // its first row
  std::int64_t first;  // row of the tile
  std::int64_t count;
  bool far = false;  // as they meet far landmarks, of which they score no others
};

ChunkWeights::ChunkWeights(const AttentionProblem& problem, const LandmarkRecords& landmarks, const CachedRows* cached,
                           std::int64_t most_rows, std::int64_t most_heads, std::int64_t topk)
    : landmarks_(landmarks),
      cached_(cached),
      heads_(problem.heads),
      most_heads_(most_heads),
      head_dim_(problem.head_dim),
      scale_(problem.scale),
      stride_(round_up(1 + topk, kRowPadding)),
      weights_(static_cast<std::size_t>(most_rows * most_heads * stride_)),
      widened_(static_cast<std::size_t>(kPanelWidth * panel_depth(head_dim_))),
      panel_(static_cast<std::size_t>(kPanelWidth * panel_depth(head_dim_))),
      products_(static_cast<std::size_t>(std::max(kBatch, landmarks.shape.vectors) * kPanelWidth)) {
  vectors_.reserve(static_cast<std::size_t>(std::max(kBatch, landmarks.shape.vectors)));
  batch_.reserve(static_cast<std::size_t>(kBatch));
  if (cached == nullptr) return;
  far_queries_.resize(static_cast<std::size_t>(kPanelWidth * head_dim_));
  far_keys_.resize(static_cast<std::size_t>(kBatch * head_dim_));
}

void ChunkWeights::weigh(const TileKernels& kernels, const RowsView& retrieval_queries, RowRange rows,
                         const HeadGroup& group, const ChunkUnion& chosen, TensorView<float, 2> lse) {
  const std::int64_t stride_bytes = heads_ * head_dim_ * size_of(retrieval_queries.dtype);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    const std::int64_t query_head = group.first_head + head;
    for (std::int64_t first = 0; first < rows.size(); first += kPanelWidth) {
      const HeadRows part{head,       query_head, landmarks_.shape.head_of(query_head, heads_),
                          rows.begin, first,      std::min(kPanelWidth, rows.size() - first)};
      const StoredRows stored{retrieval_queries.row(rows.begin + first, query_head), stride_bytes,
                              retrieval_queries.dtype};
      kernels.pack_columns(stored, part.count, head_dim_, scale_, widened_.data(), panel_.data());
      landmarks_.shape.vectors == 1 ? score(kernels, part, chosen) : score_sums(kernels, part, chosen);
      if (cached_ != nullptr) score_far(kernels, retrieval_queries, part, chosen);
    }
    for (std::int64_t row = 0; row < rows.size(); ++row) {
      const std::int64_t terms = chosen.chosen_by(row) + 1;
      if (terms == 1) continue;
      float& row_lse = lse(rows.begin + row, query_head);
      float* weights = slots(row, head);
      weights[0] = row_lse;
      float top;
      const float sum = kernels.exponentiate(weights, terms, &top);
      row_lse = sum == 0.0f ? -kInfinity : static_cast<float>(top + std::log(double{sum}));
      if (sum == 0.0f) continue;
      for (std::int64_t i = 0; i < terms; ++i) weights[i] /= sum;
    }
  }
}

// A column of products becomes the scores of one chunk; its bias comes last, as in score_chunks.
void ChunkWeights::put(const ChunkUnion& chosen, std::int64_t i, const HeadRows& part, const float* columns) {
  const float bias = landmarks_.of(chosen.chunk(i))[landmarks_.shape.bias_offset() + part.landmark_head];
  for (const ChunkUnion::Member& member : chosen.members(i, part.first, part.count)) {
    if (!scores(part, member, chosen.chunk(i))) continue;
    slots(member.row, part.head)[1 + member.slot] = columns[member.row - part.first] + bias;
  }
}

void ChunkWeights::cap(const TileKernels& kernels, std::int64_t products) {
  if (landmarks_.shape.logit_cap == 0.0f) return;
  kernels.cap_scores(products_.data(), products * kPanelWidth, landmarks_.shape.logit_cap);
}

void ChunkWeights::flush(const TileKernels& kernels, const HeadRows& part, const ChunkUnion& chosen) {
  kernels.multiply(vectors_.data(), static_cast<std::int64_t>(vectors_.size()), head_dim_, panel_.data(),
                   products_.data());
  cap(kernels, static_cast<std::int64_t>(vectors_.size()));
  for (std::size_t v = 0; v < batch_.size(); ++v) {
    put(chosen, batch_[v], part, products_.data() + v * static_cast<std::size_t>(kPanelWidth));
  }
  vectors_.clear();
  batch_.clear();
}

// Do these rows score the choice of one of them? All but those in a cache score every one.
bool ChunkWeights::scores(const HeadRows& part, const ChunkUnion::Member& member, ChunkId chunk) const {
  if (cached_ == nullptr) return true;
  const TokenId query = cached_->tokens[static_cast<std::size_t>(part.tile + member.row)];
  return cached_->positions.is_far(query, chunk) == part.far;
}

bool ChunkWeights::scores_any(const HeadRows& part, const ChunkUnion& chosen, std::int64_t i) const {
  const std::span<const ChunkUnion::Member> members = chosen.members(i, part.first, part.count);
  return std::any_of(members.begin(), members.end(),
                     [&](const ChunkUnion::Member& member) { return scores(part, member, chosen.chunk(i)); });
}

// The landmark that the rows score, the next one of a batch.
const float* ChunkWeights::key_of(ChunkId chunk, const HeadRows& part) {
  const float* const key = landmarks_.of(chunk) + part.landmark_head * head_dim_;
  if (!part.far) return key;
  float* const turned = far_keys_.data() + std::ssize(batch_) * head_dim_;
  std::copy_n(key, head_dim_, turned);
  cached_->positions.turn_back_landmark(chunk, {turned, static_cast<std::size_t>(head_dim_)});
  return turned;
}

// The same rows again, turned to where far landmarks are.
void ChunkWeights::score_far(const TileKernels& kernels, const RowsView& queries, const HeadRows& rows,
                             const ChunkUnion& chosen) {
  HeadRows part = rows;
  part.far = true;
  for (std::int64_t row = 0; row < part.count; ++row) {
    const std::int64_t at = part.tile + part.first + row;
    const std::span<float> query(far_queries_.data() + row * head_dim_, static_cast<std::size_t>(head_dim_));
    queries.load(at, part.query_head, query.data());
    cached_->positions.meet_far_landmarks(cached_->tokens[static_cast<std::size_t>(at)], query);
  }
  const StoredRows stored{reinterpret_cast<const std::byte*>(far_queries_.data()),
                          head_dim_ * static_cast<std::int64_t>(sizeof(float)), DType::kFloat32};
  kernels.pack_columns(stored, part.count, head_dim_, scale_, widened_.data(), panel_.data());
  score(kernels, part, chosen);
}

void ChunkWeights::score(const TileKernels& kernels, const HeadRows& part, const ChunkUnion& chosen) {
  for (std::int64_t i = 0; i < chosen.size(); ++i) {
    if (!scores_any(part, chosen, i)) continue;
    vectors_.push_back(key_of(chosen.chunk(i), part));
    batch_.push_back(i);
    if (static_cast<std::int64_t>(batch_.size()) == kBatch) flush(kernels, part, chosen);
  }
  flush(kernels, part, chosen);
}

// Landmarks of many vectors: the score is the lse of their products.
void ChunkWeights::score_sums(const TileKernels& kernels, const HeadRows& part, const ChunkUnion& chosen) {
  const std::int64_t vectors = landmarks_.shape.vectors;
  for (std::int64_t i = 0; i < chosen.size(); ++i) {
    if (chosen.members(i, part.first, part.count).empty()) continue;
    const float* keys = landmarks_.of(chosen.chunk(i)) + part.landmark_head * vectors * head_dim_;
    vectors_.clear();
    for (std::int64_t v = 0; v < vectors; ++v) {
      if (keys[v * head_dim_] != kInfinity) vectors_.push_back(keys + v * head_dim_);
    }
    const auto used = static_cast<std::int64_t>(vectors_.size());
    kernels.multiply(vectors_.data(), used, head_dim_, panel_.data(), products_.data());
    cap(kernels, used);
    float top[kPanelWidth];
    float sum[kPanelWidth];
    kernels.sum_columns(products_.data(), used, top, sum);
    for (std::int64_t lane = 0; lane < part.count; ++lane) {
      top[lane] = sum[lane] == 0.0f ? -kInfinity : static_cast<float>(top[lane] + std::log(double{sum[lane]}));
    }
    put(chosen, i, part, top);
  }
  vectors_.clear();
}

}  // namespace ringmark::kernels::cpu
