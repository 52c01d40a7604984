// What a LoGo layer has beside q, k and v, in the same safetensors file: the gates of its tokens, or what they come
// from, and the optional weights of its branches. Described in docs/formats.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kvstore/safetensors_file.h"

namespace ringmark::runtime::logo {

// Each may be empty: weights 1, and queries of the global branch as they are.
struct BranchWeights {
  std::vector<float> local_norm, global_norm;      // [d]
  std::vector<float> global_scale, global_offset;  // [H, d] query of the global branch: scale q + offset

  bool transforms() const { return !global_scale.empty() || !global_offset.empty(); }
};

class BranchTensors {
 public:
  // Exactly one of `gate` [N] and `hidden` [N, D] with `gate_weight` [D] and `gate_bias` [1]; any of `logo.local_norm`
  // and `logo.global_norm` [d], `logo.global_scale` and `logo.global_offset` [H, d]. F32, BF16 or F16. Throws
  // Error(kBadInput) naming the file and the tensor that is missing or does not fit.
  BranchTensors(const std::string& path, const AttentionProblem& problem);

  const BranchWeights& weights() const { return weights_; }

  // Of these runs of tokens, one behind the other: g = gate, or 1 / (1 + e^-(hidden . gate_weight + gate_bias)). Throws
  // Error(kBadInput) naming the token of a given gate outside (0, 1) and of a hidden state that is not finite.
  std::vector<float> gates(std::span<const RowRange> tokens) const;

 private:
  std::vector<float> given_gates(std::span<const RowRange> tokens) const;
  std::vector<float> gates_of_hidden(std::span<const RowRange> tokens) const;

  kvstore::SafetensorsFile file_;
  const kvstore::StoredTensor* gate_;    // null: gates come from
  const kvstore::StoredTensor* hidden_;  // hidden states
  std::vector<float> gate_weight_;
  float gate_bias_ = 0.0f;
  BranchWeights weights_;
};

}  // namespace ringmark::runtime::logo
