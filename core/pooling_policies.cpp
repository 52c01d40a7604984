#include <string>

#include "core/check_range.h"
#include "core/compressive_policy.h"
#include "core/error.h"
#include "core/nsa_policy.h"

namespace ringmark {
namespace {

constexpr std::int64_t kMaxSpan = std::int64_t{1} << 40;

void check_multiple(const char* field, std::int64_t value, const char* of, std::int64_t unit) {
  if (value % unit == 0) return;
  fail_bad_input(std::string(field) + " = " + std::to_string(value) + " is not a multiple of " + of + " = " +
                 std::to_string(unit));
}

// A mean of keys stands at no distance.
void refuse_alibi(const AttentionProblem& problem, const char* policy) {
  if (problem.alibi) fail_bad_input(std::string("alibi does not go with policy ") + policy);
}

}  // namespace

AttentionPolicy NsaPolicy::window_policy() const { return exact_window(window); }

AttentionPolicy NsaPolicy::selection_policy() const {
  AttentionPolicy policy;
  policy.window = window;
  policy.topk = topk;
  policy.scorer = Scorer::kMean;
  policy.fusion = Fusion::kUnion;
  return policy;
}

void NsaPolicy::validate(const AttentionProblem& problem) const {
  refuse_alibi(problem, "nsa");
  if (!problem.sink_logits.empty()) fail_bad_input("sink_logits do not go with policy nsa: it has three softmaxes");
  check_range("topk", topk, kForced, kMaxTopk);
  window_policy().validate(problem);
  selection_policy().validate(problem);
}

AttentionPolicy CompressivePolicy::exact_policy() const {
  AttentionPolicy policy;
  policy.window = memory;
  policy.topk = 0;
  policy.scorer = Scorer::kNone;
  policy.edge = WindowEdge::kSegment;
  policy.segment = segment;
  return policy;
}

void CompressivePolicy::validate(const AttentionProblem& problem) const {
  refuse_alibi(problem, "compressive");
  check_range("compression_rate", rate, 1, kMaxChunkSize);
  check_range("segment", segment, 1, kMaxSpan);
  check_range("memory", memory, 0, kMaxSpan);
  check_range("compressed_slots", slots, 0, kMaxSpan);
  check_multiple("chunk_size", problem.chunk_size, "compression_rate", rate);
  check_multiple("segment", segment, "compression_rate", rate);
  check_multiple("memory", memory, "compression_rate", rate);
  exact_policy().validate(problem);
}

}  // namespace ringmark
