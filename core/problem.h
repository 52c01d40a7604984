// What is asked: the shape of one attention layer over one (possibly packed) sequence, and the policy that says which
// keys each query sees. Both are plain values, validated once before anything is allocated.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace ringmark {

inline constexpr std::int64_t kMaxHeadDim = 256;
inline constexpr std::int64_t kMaxChunkSize = 1024;
inline constexpr std::int64_t kMaxTopk = 4096;
// Chunks of a sequence that selects: the exact sums of kernels/log_sum.h hold so many terms.
inline constexpr std::int64_t kMaxChunks = std::int64_t{1} << 21;

struct AttentionProblem {
  std::int64_t tokens = 0;       // N, over all packed documents
  std::int64_t heads = 1;        // H query heads
  std::int64_t kv_heads = 1;     // Hkv key/value heads; H is a multiple of it
  std::int64_t head_dim = 64;    // d, 1..kMaxHeadDim
  std::int64_t chunk_size = 64;  // S, 1..kMaxChunkSize
  DType dtype = DType::kBfloat16;
  float scale = 0.125f;         // factor of q.k inside the softmax, usually 1/sqrt(d)
  bool landmark_slots = false;  // the last slot of every full chunk is a landmark: never attended as a key
  std::vector<std::int64_t> cu_seqlens = {};  // document starts, then tokens; empty means one document

  std::int64_t group() const { return heads / kv_heads; }
  // First token of every document, then tokens; one document without cu_seqlens.
  std::vector<std::int64_t> starts() const {
    return cu_seqlens.empty() ? std::vector<std::int64_t>{0, tokens} : cu_seqlens;
  }
  // No fewer than there are: a document may end with a partial chunk.
  std::int64_t chunks_at_most() const;
  // Throws Error(kBadInput) naming field, value and limit.
  void validate() const;
};

// How a chunk is scored for a query (formulas: docs/numerics.md). hils scores with the retrieval query, whose
// calibration was trained for it; mean and oracle score with the attention query.
enum class Scorer {
  kHils,    // tangent-plane summary at the chunk's landmark query
  kMean,    // mean of the chunk's keys: kHils with a zero landmark query
  kOracle,  // the exact log mass of the chunk: what a perfect scorer would return
  kNone,    // no selection: window and sinks only
};

std::string_view name_of(Scorer scorer);

struct AttentionPolicy {
  std::int64_t window = 128;  // W: keys [max(0, floor((i-W+1)/S)*S), i] are attended exactly; 0 = the current chunk
  std::int64_t topk = 16;     // K chunks a query and kv head, 0..kMaxTopk
  std::int64_t sinks = 0;     // first tokens of every document that are always attended
  Scorer scorer = Scorer::kHils;

  bool selects() const { return scorer != Scorer::kNone && topk > 0; }
  void validate(const AttentionProblem& problem) const;
};

}  // namespace ringmark
