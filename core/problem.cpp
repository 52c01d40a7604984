#include "core/problem.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check_range.h"
#include "core/error.h"

namespace ringmark {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

}  // namespace

void AttentionProblem::validate() const {
  check_range("tokens", tokens, 1, kMaxTokens);
  check_range("heads", heads, 1, 4096);
  check_range("kv_heads", kv_heads, 1, heads);
  if (heads % kv_heads != 0) {
    fail_bad_input("heads = " + std::to_string(heads) + " is not a multiple of kv_heads = " + std::to_string(kv_heads));
  }
  check_range("head_dim", head_dim, 1, kMaxHeadDim);
  check_range("chunk_size", chunk_size, landmark_slots ? 2 : 1, kMaxChunkSize);
  if (!std::isfinite(scale) || scale <= 0.0f) {
    fail_bad_input("scale = " + std::to_string(scale) + " is not a finite number above 0");
  }
  if (!std::isfinite(logit_cap) || logit_cap < 0.0f) {
    fail_bad_input("logit_cap = " + std::to_string(logit_cap) + " is not a finite number of at least 0");
  }
  if (!sink_logits.empty() && std::ssize(sink_logits) != heads) {
    fail_bad_input("sink_logits has " + std::to_string(sink_logits.size()) +
                   " values, not one for each of heads = " + std::to_string(heads));
  }
  for (const float logit : sink_logits) {
    if (std::isnan(logit) || logit == HUGE_VALF) fail_bad_input("sink_logits holds " + std::to_string(logit));
  }
  if (cu_seqlens.empty()) return;
  if (cu_seqlens.front() != 0) fail_bad_input("cu_seqlens[0] = " + std::to_string(cu_seqlens.front()) + " is not 0");
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      fail_bad_input("cu_seqlens[" + std::to_string(i) + "] = " + std::to_string(cu_seqlens[i]) +
                     " is below the entry before it, " + std::to_string(cu_seqlens[i - 1]));
    }
  }
  if (cu_seqlens.back() != tokens) {
    fail_bad_input("cu_seqlens ends at " + std::to_string(cu_seqlens.back()) +
                   ", not at tokens = " + std::to_string(tokens));
  }
}

std::int64_t AttentionProblem::chunks_at_most() const {
  const auto documents = std::max<std::int64_t>(1, static_cast<std::int64_t>(cu_seqlens.size()) - 1);
  return tokens / chunk_size + documents;
}

AttentionPolicy exact_window(std::int64_t window) {
  AttentionPolicy policy;
  policy.window = window;
  policy.topk = 0;
  policy.scorer = Scorer::kNone;
  policy.edge = WindowEdge::kToken;
  return policy;
}

std::int64_t AttentionPolicy::choosers(const AttentionProblem& problem) const {
  switch (choice) {
    case Choice::kGroup: return problem.kv_heads;
    case Choice::kHead: return problem.heads;
    case Choice::kAll: return 1;
  }
  return 1;
}

void AttentionPolicy::validate(const AttentionProblem& problem) const {
  check_range("window", window, 0, kMaxTokens);
  check_range("topk", topk, 0, kMaxTopk);
  check_range("sinks", sinks, 0, kMaxTokens);
  if (edge != WindowEdge::kChunk && selects())
    fail_bad_input("a window that begins inside a chunk does not go with a choice of chunks");
  if (problem.alibi && selects()) {
    fail_bad_input("alibi = 1 does not go with scorer = " + std::string(name_of(scorer)) +
                   ": the bias of a chunk of keys is none of its score; limit: policies that choose no chunks");
  }
  if (edge == WindowEdge::kToken) check_range("window", window, 1, kMaxTokens);
  if (edge == WindowEdge::kSegment) check_range("segment", segment, 1, kMaxTokens);
  if (scorer == Scorer::kQuest && fusion == Fusion::kHierarchical)
    fail_bad_input("quest bounds a logit, not a mass: it needs the union fusion");
  if (scorer == Scorer::kLandmark && !problem.landmark_slots) fail_bad_input("scorer landmark needs landmark slots");
  if (landmark_positions == LandmarkPositions::kStingy) {
    if (scorer != Scorer::kLandmark || fusion != Fusion::kHierarchical)
      fail_bad_input("landmark_positions = stingy needs scorer landmark and the hierarchical fusion");
    check_range("window with stingy positions", window, 0, 0);
    check_range("sinks with stingy positions", sinks, 0, 0);
  }
  if (selects() && problem.chunks_at_most() > kMaxChunks) {
    fail_bad_input("chunk_size = " + std::to_string(problem.chunk_size) + " makes " +
                   std::to_string(problem.chunks_at_most()) + " chunks of the sequence, above the limit of " +
                   std::to_string(kMaxChunks));
  }
}

void AttentionPolicy::expect_usual_choice(std::string_view user) const {
  if (!selects()) return;
  const auto refuse = [&](const char* field, std::string_view value, const char* limit) {
    fail_bad_input(std::string(field) + " = " + std::string(value) + " does not go with " + std::string(user) +
                   "; limit: " + limit);
  };
  if (scorer == Scorer::kLandmark || scorer == Scorer::kQuest) refuse("scorer", name_of(scorer), "hils, mean, oracle");
  if (choice != Choice::kGroup) refuse("choice", name_of(choice), "group");
  if (fusion != Fusion::kHierarchical) refuse("fusion", name_of(fusion), "hierarchical");
}

std::string beyond_plain_logits(const AttentionProblem& problem, const AttentionPolicy& policy) {
  if (problem.logit_cap > 0.0f) return "logit_cap = " + std::to_string(problem.logit_cap);
  if (problem.alibi) return "alibi = 1";
  if (!problem.sink_logits.empty()) return "sink_logits = " + std::to_string(problem.sink_logits.front()) + ", ...";
  if (policy.edge != WindowEdge::kChunk) return "edge = " + std::string(name_of(policy.edge));
  return "";
}

std::string_view name_of(Scorer scorer) {
  switch (scorer) {
    case Scorer::kHils: return "hils";
    case Scorer::kMean: return "mean";
    case Scorer::kOracle: return "oracle";
    case Scorer::kLandmark: return "landmark";
    case Scorer::kQuest: return "quest";
    case Scorer::kNone: return "none";
  }
  return "?";
}

std::string_view name_of(Choice choice) {
  switch (choice) {
    case Choice::kGroup: return "group";
    case Choice::kHead: return "head";
    case Choice::kAll: return "all";
  }
  return "?";
}

std::string_view name_of(Fusion fusion) {
  switch (fusion) {
    case Fusion::kHierarchical: return "hierarchical";
    case Fusion::kUnion: return "union";
  }
  return "?";
}

std::string_view name_of(WindowEdge edge) {
  switch (edge) {
    case WindowEdge::kChunk: return "chunk";
    case WindowEdge::kToken: return "token";
    case WindowEdge::kSegment: return "segment";
  }
  return "?";
}

std::string_view name_of(LandmarkPositions positions) {
  return positions == LandmarkPositions::kTrue ? "true" : "stingy";
}

}  // namespace ringmark
