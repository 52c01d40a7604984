#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/exp2.h"
#include "kernels/landmarks.h"

namespace ringmark::kernels {
namespace {

// The ordinary keys of one (chunk, kv head) pair, widened once for all query heads of the group.
class ChunkKeys {
 public:
  ChunkKeys(std::int64_t chunk_size, std::int64_t head_dim)
      : head_dim_(head_dim), keys_(static_cast<std::size_t>(chunk_size * head_dim)), components_(keys_.size()) {}

  // `keys` is the block's first key; ordinary keys are its slots [first, first + count).
  void load(const BlockShape& shape, const std::byte* keys, std::int64_t first, std::int64_t count) {
    count_ = count;
    widen(keys + first * shape.row_bytes(), shape.dtype, count * head_dim_, keys_.data());
    for (std::int64_t j = 0; j < count_; ++j) {
      for (std::int64_t i = 0; i < head_dim_; ++i) components_[size(i * count_ + j)] = keys_[size(j * head_dim_ + i)];
    }
  }

  std::int64_t count() const { return count_; }
  std::int64_t head_dim() const { return head_dim_; }
  const float* key(std::int64_t j) const { return keys_.data() + j * head_dim_; }
  // Component i of all keys.
  const float* component(std::int64_t i) const { return components_.data() + i * count_; }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t head_dim_;
  std::int64_t count_ = 0;
  std::vector<float> keys_;        // [count][head_dim]
  std::vector<float> components_;  // [head_dim][count]
};

// key = sum_j weight_j key_j. The first product starts the chain, so that a single key comes out as it is.
void mix_keys(const ChunkKeys& keys, const float* weights, float* key) {
  for (std::int64_t i = 0; i < keys.head_dim(); ++i) key[i] = weights[0] * keys.key(0)[i];
  for (std::int64_t j = 1; j < keys.count(); ++j) {
    const float* next = keys.key(j);
    for (std::int64_t i = 0; i < keys.head_dim(); ++i) key[i] = std::fma(weights[j], next[i], key[i]);
  }
}

// hils: the tangent plane of logsumexp_j (scale q . k_j) at the landmark query. Returns the bias; weights and logits
// are scratch for one number a key. `query` has the scale multiplied in.
float build_tangent(const ChunkKeys& keys, const float* query, float* logits, float* weights, float* key) {
  const std::int64_t count = keys.count();
  std::fill_n(logits, count, 0.0f);
  for (std::int64_t i = 0; i < keys.head_dim(); ++i) {
    const float* component = keys.component(i);
    for (std::int64_t j = 0; j < count; ++j) logits[j] = std::fma(query[i], component[j], logits[j]);
  }
  const float largest = *std::max_element(logits, logits + count);
  for (std::int64_t j = 0; j < count; ++j) weights[j] = exp_of_negative(logits[j] - largest);

  // Entropy = ln(sum of weights) + mean depth below the largest logit: two terms that are not negative, so nothing
  // cancels. fp64 keeps the sums of up to 1024 keys as good as their terms.
  double sum = 0.0;
  double depth = 0.0;
  for (std::int64_t j = 0; j < count; ++j) {
    sum += weights[j];
    if (weights[j] > 0.0f) depth += static_cast<double>(weights[j]) * (largest - logits[j]);
  }
  const double reciprocal = 1.0 / sum;
  for (std::int64_t j = 0; j < count; ++j) weights[j] = static_cast<float>(weights[j] * reciprocal);
  mix_keys(keys, weights, key);
  const double entropy = std::log(sum) + depth * reciprocal;
  return static_cast<float>(std::clamp(entropy, 0.0, std::log(static_cast<double>(count))));
}

// mean: the tangent plane of a zero landmark query. Returns the bias.
float build_mean(const ChunkKeys& keys, float* key) {
  const auto count = static_cast<double>(keys.count());
  for (std::int64_t i = 0; i < keys.head_dim(); ++i) {
    double sum = 0.0;
    for (std::int64_t j = 0; j < keys.count(); ++j) sum += keys.component(i)[j];
    key[i] = static_cast<float>(sum / count);
  }
  return static_cast<float>(std::log(count));
}

// oracle: the keys themselves; the other vectors are marked as unused. Returns the bias.
float copy_keys(const ChunkKeys& keys, std::int64_t vectors, float* vector) {
  const std::int64_t used = keys.count() * keys.head_dim();
  std::copy_n(keys.key(0), used, vector);
  std::fill_n(vector + used, (vectors - keys.count()) * keys.head_dim(), 0.0f);
  for (std::int64_t v = keys.count(); v < vectors; ++v) {
    vector[v * keys.head_dim()] = std::numeric_limits<float>::infinity();
  }
  return 0.0f;
}

// quest: the largest, then the least of every component.
void build_bounds(const ChunkKeys& keys, float* bounds) {
  for (std::int64_t i = 0; i < keys.head_dim(); ++i) {
    const auto [least, largest] = std::minmax_element(keys.component(i), keys.component(i) + keys.count());
    bounds[i] = *largest;
    bounds[keys.head_dim() + i] = *least;
  }
}

struct Scratch {
  Scratch(std::int64_t chunk_size, std::int64_t head_dim)
      : keys(chunk_size, head_dim),
        query(static_cast<std::size_t>(head_dim)),
        logits(static_cast<std::size_t>(chunk_size)),
        weights(static_cast<std::size_t>(chunk_size)) {}

  ChunkKeys keys;
  std::vector<float> query;
  std::vector<float> logits;
  std::vector<float> weights;
};

// Landmark heads of one kv head of a chunk whose keys are loaded; those of Scorer::kLandmark are not made of keys.
void build_head(const AttentionProblem& problem, Scorer scorer, const LandmarkShape& shape,
                const RowsView& landmark_rows, std::int64_t row, std::int64_t kv_head, Scratch& scratch,
                float* record) {
  const std::int64_t heads_per_kv_head = shape.heads / problem.kv_heads;
  const std::int64_t first = kv_head * heads_per_kv_head;
  for (std::int64_t head = first; head < first + heads_per_kv_head; ++head) {
    float* key = record + head * shape.vectors * shape.head_dim;
    float& bias = record[shape.bias_offset() + head];
    if (scorer == Scorer::kMean) bias = build_mean(scratch.keys, key);
    if (scorer == Scorer::kOracle) bias = copy_keys(scratch.keys, shape.vectors, key);
    if (scorer == Scorer::kQuest) {
      build_bounds(scratch.keys, key);
      bias = 0.0f;
    }
    if (scorer != Scorer::kHils) continue;
    landmark_rows.load(row, head, scratch.query.data());
    for (float& component : scratch.query) component *= problem.scale;
    bias = build_tangent(scratch.keys, scratch.query.data(), scratch.logits.data(), scratch.weights.data(), key);
  }
}

// landmark: the keys of a chunk's last slot.
void copy_landmark_slot(const AttentionProblem& problem, const LandmarkShape& shape, const BlockTable& blocks,
                        ChunkId chunk, float* record) {
  const std::int64_t slot = (problem.chunk_size - 1) * blocks.shape().row_bytes();
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    widen(blocks.keys(chunk, head) + slot, problem.dtype, shape.head_dim, record + head * shape.head_dim);
  }
  std::fill_n(record + shape.bias_offset(), shape.heads, 0.0f);
}

}  // namespace

void build_landmarks(const AttentionProblem& problem, Scorer scorer, const partition::SequenceGrid& grid,
                     std::span<const ChunkId> chunks, const RowsView& landmark_rows, const BlockTable& blocks,
                     std::span<float> records, int threads) {
  const LandmarkShape shape = LandmarkShape::of(problem, scorer);
  if (shape.heads == 0) return;
  std::vector<Scratch> scratches(static_cast<std::size_t>(threads), Scratch(problem.chunk_size, problem.head_dim));
  const auto count = static_cast<std::int64_t>(chunks.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (std::int64_t slot = 0; slot < count; ++slot) {
    const ChunkId chunk = chunks[static_cast<std::size_t>(slot)];
    if (!grid.has_landmark(chunk)) continue;
    float* record = records.data() + slot * shape.record_floats();
    if (scorer == Scorer::kLandmark) {
      copy_landmark_slot(problem, shape, blocks, chunk, record);
      continue;
    }
    Scratch& scratch = scratches[static_cast<std::size_t>(omp_get_thread_num())];
    const Range<TokenId> keys = grid.keys_of(chunk);
    const std::int64_t first = keys.begin - grid.tokens_of(chunk).begin;
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      scratch.keys.load(blocks.shape(), blocks.keys(chunk, kv_head), first, keys.size());
      build_head(problem, scorer, shape, landmark_rows, slot, kv_head, scratch, record);
    }
  }
}

}  // namespace ringmark::kernels
