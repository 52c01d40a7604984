// Gradients of K and V while they are gathered: per (chunk, kv head) one fp32 record, contiguous,
//     dk [chunk_size][head_dim], dv [chunk_size][head_dim],
//     dk' [landmark heads of the kv head][head_dim], db' [landmark heads of the kv head].
// The last two are what reached the chunk's landmarks, without what goes on from there to its keys: a sum over rows
// that any rank may have a part of. Records of several ranks add up element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/landmarks.h"

namespace ringmark::kernels {

struct GradientShape {
  std::int64_t chunk_size = 0;
  std::int64_t head_dim = 0;
  std::int64_t landmark_heads = 0;  // of a kv head; 0 where nothing is selected

  static GradientShape of(const AttentionProblem& problem, const AttentionPolicy& policy) {
    const std::int64_t landmarks = policy.selects() ? LandmarkShape::of(problem, policy.scorer).heads : 0;
    return {problem.chunk_size, problem.head_dim, landmarks / problem.kv_heads};
  }
  std::int64_t values_at() const { return chunk_size * head_dim; }
  std::int64_t landmark_keys_at() const { return 2 * values_at(); }
  std::int64_t landmark_biases_at() const { return landmark_keys_at() + landmark_heads * head_dim; }
  std::int64_t floats() const { return landmark_biases_at() + landmark_heads; }
};

// Where the records that a kernel may add to are. Non-owning; null for one that is not present.
class GradientTable {
 public:
  GradientTable(GradientShape shape, std::int64_t chunks, std::int64_t kv_heads)
      : shape_(shape), kv_heads_(kv_heads), records_(static_cast<std::size_t>(chunks * kv_heads), nullptr) {}

  const GradientShape& shape() const { return shape_; }
  void set(ChunkId chunk, std::int64_t kv_head, float* record) { records_[index(chunk, kv_head)] = record; }
  float* of(ChunkId chunk, std::int64_t kv_head) const { return records_[index(chunk, kv_head)]; }

 private:
  std::size_t index(ChunkId chunk, std::int64_t kv_head) const {
    return static_cast<std::size_t>(chunk.value() * kv_heads_ + kv_head);
  }

  GradientShape shape_;
  std::int64_t kv_heads_;
  std::vector<float*> records_;
};

}  // namespace ringmark::kernels
