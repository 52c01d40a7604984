// The planted layer of runtime/planted_layer.h (same meaning, other random numbers), made on the GPU: any rank fills
// its own rows from (seed, token), so that the layer does not depend on the rank count and no host ever holds it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "runtime/planted_layer.h"
#include "runtime/planted_needles.h"

namespace ringmark::bench {

// A row of a rank that asks for a needle.
struct Question {
  std::int64_t row = 0;
  std::int64_t needle = 0;
};

class PlantedDevice {
 public:
  // One document of validated shape, head_dim a multiple of 8. Plants fewer needles when fewer chunks can be chosen
  // from the tail.
  PlantedDevice(const AttentionProblem& problem, const AttentionPolicy& policy, const runtime::PlantedOptions& options);

  // Device memory, 16-byte aligned: q [rows, H, d], k and v [rows, Hkv, d] of the dtype; row r is tokens[r]. Returns
  // when the rows are there.
  void fill(std::span<const TokenId> tokens, std::byte* q, std::byte* k, std::byte* v, cudaStream_t stream) const;

  std::int64_t needles() const { return needles_.count(); }
  // The rows among `tokens` that ask, ascending.
  std::vector<Question> questions(std::span<const TokenId> tokens) const;
  // Value of a needle's key, one kv head: +-1 a channel.
  std::span<const float> code(std::int64_t needle) const;
  // True when every head of `out`, the output [H, d] of the question's row, is closest to the needle's own code, with a
  // cosine above 0.7.
  bool recovered(std::int64_t needle, std::span<const float> out) const;

 private:
  AttentionProblem problem_;
  runtime::PlantedOptions options_;
  runtime::PlantedNeedles needles_;
  std::vector<float> directions_;  // [needles, d] of questions, needle keys and their landmark queries
  std::vector<float> codes_;       // [needles, d]
};

}  // namespace ringmark::bench
