// What one rank reads of another's (chunk, kv head), back to back: the block as it is kept, then the landmark keys and
// biases of the kv head's landmark heads, because the weight of a chosen chunk is its landmark score. One checksum
// covers all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/problem.h"
#include "kernels/landmarks.h"

namespace ringmark::runtime {

class BlockParcel {
 public:
  // landmark.heads is 0 where nothing is selected.
  BlockParcel(const AttentionProblem& problem, const kernels::LandmarkShape& landmark, std::int64_t encoded_bytes)
      : record_floats_(landmark.record_floats()),
        bias_offset_(landmark.bias_offset()),
        encoded_bytes_(encoded_bytes),
        biases_(landmark.heads / problem.kv_heads),
        keys_(biases_ * landmark.vectors * landmark.head_dim) {}

  std::int64_t record_floats() const { return record_floats_; }
  std::int64_t block_bytes() const { return encoded_bytes_; }
  std::int64_t key_bytes() const { return keys_ * kFloat; }
  std::int64_t bias_bytes() const { return biases_ * kFloat; }
  std::int64_t landmark_bytes() const { return key_bytes() + bias_bytes(); }
  std::int64_t bytes() const { return encoded_bytes_ + landmark_bytes(); }

  // Where the landmark parts of a kv head stand in a record, in floats.
  std::int64_t keys_at(std::int64_t kv_head) const { return kv_head * keys_; }
  std::int64_t biases_at(std::int64_t kv_head) const { return bias_offset_ + kv_head * biases_; }

 private:
  static constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

  std::int64_t record_floats_;
  std::int64_t bias_offset_;
  std::int64_t encoded_bytes_;
  std::int64_t biases_;  // floats of a kv head
  std::int64_t keys_;    // floats of a kv head
};

}  // namespace ringmark::runtime
