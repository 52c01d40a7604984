// What is asked: the shape of one attention layer over one (possibly packed) sequence, and the policy that says which
// keys each query sees. Both are plain values, validated once before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
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
  float logit_cap = 0.0f;               // above 0: logits become cap tanh(logit / cap), before the mask; 0: they stay
  bool alibi = false;                   // logits lose slope_h (i - j), with the slopes of kernels/positions/alibi.h
  std::vector<float> sink_logits = {};  // [H] a logit of each head whose value is 0; empty means none

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
// calibration was trained for it; the others score with the attention query.
enum class Scorer {
  kHils,      // tangent-plane summary at the chunk's landmark query
  kMean,      // mean of the chunk's keys: kHils with a zero landmark query
  kOracle,    // the exact log mass of the chunk: what a perfect scorer would return
  kLandmark,  // the key at the chunk's landmark slot
  kQuest,     // a bound of the chunk's largest logit by the range of each component of its keys
  kNone,      // no selection: window and sinks only
};

std::string_view name_of(Scorer scorer);

// Which heads agree on their chunks.
enum class Choice {
  kGroup,  // the query heads of one kv head
  kHead,   // every query head chooses alone
  kAll,    // all heads of the layer
};

std::string_view name_of(Choice choice);

// How what the chosen chunks give is mixed with the window.
enum class Fusion {
  kHierarchical,  // the weight of a chunk is its score, against the mass of the window
  kUnion,         // one softmax over all keys of the chosen chunks and of the window
};

std::string_view name_of(Fusion fusion);

// Where the window of a query begins.
enum class WindowEdge {
  kChunk,    // at the chunk boundary at or below i-W+1, so that window and eligible chunks part the prefix
  kToken,    // at i-W+1; only without selection
  kSegment,  // W tokens before the segment of the query; only without selection
};

std::string_view name_of(WindowEdge edge);

// Where landmarks and chosen chunks stand for a query (kernels/positions/cache_positions.h).
enum class LandmarkPositions {
  kTrue,    // where they are in their document
  kStingy,  // in a cache of topk chunks, so that no distance grows with the document; only with Scorer::kLandmark
};

std::string_view name_of(LandmarkPositions positions);

struct AttentionPolicy {
  std::int64_t window = 128;  // W: keys [max(0, floor((i-W+1)/S)*S), i] are attended exactly; 0 = the current chunk
  std::int64_t topk = 16;     // K chunks a query and chooser, 0..kMaxTopk
  std::int64_t sinks = 0;     // first tokens of every document that are always attended
  Scorer scorer = Scorer::kHils;
  Choice choice = Choice::kGroup;
  Fusion fusion = Fusion::kHierarchical;
  WindowEdge edge = WindowEdge::kChunk;
  std::int64_t segment = 0;  // tokens of a segment; only with WindowEdge::kSegment
  LandmarkPositions landmark_positions = LandmarkPositions::kTrue;

  bool selects() const { return scorer != Scorer::kNone && topk > 0; }
  // Lists of chosen chunks a row has.
  std::int64_t choosers(const AttentionProblem& problem) const;
  void validate(const AttentionProblem& problem) const;
  // For what knows only selection by hils, mean or oracle, by group, with the hierarchical fusion. Throws
  // Error(kBadInput) naming what is asked besides; `user` is what it does not go with.
  void expect_usual_choice(std::string_view user) const;
};

// The first field, as "name = value", by which a layer asks for more than scaled products as its logits and windows
// that begin at chunks; empty when it asks for no more. For what knows nothing else: it refuses the layer by that name.
std::string beyond_plain_logits(const AttentionProblem& problem, const AttentionPolicy& policy);

// Keys [i-W+1, i] of the document and nothing else; W at least 1.
AttentionPolicy exact_window(std::int64_t window);

}  // namespace ringmark
