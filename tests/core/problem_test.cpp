#include "core/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/error.h"

namespace ringmark {
namespace {

AttentionProblem usual() {
  AttentionProblem problem;
  problem.tokens = 100;
  problem.heads = 4;
  problem.kv_heads = 2;
  return problem;
}

// The refusal is bad input and names the field and the value.
void expect_refused(const std::function<void()>& check, const std::string& field, const std::string& value) {
  try {
    check();
    ADD_FAILURE() << field << " = " << value << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    const std::string text = error.what();
    EXPECT_NE(text.find(field), std::string::npos) << text;
    EXPECT_NE(text.find(value), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// bugs.md 11: 0, negative and non-finite settings are refused, not interpreted.
TEST(AttentionProblem, refuses_what_it_cannot_mean) {
  const auto refuse = [](auto change, const char* field, const char* value) {
    AttentionProblem problem = usual();
    change(problem);
    expect_refused([&] { problem.validate(); }, field, value);
  };
  refuse([](auto& p) { p.tokens = 0; }, "tokens", "0");
  refuse([](auto& p) { p.tokens = -5; }, "tokens", "-5");
  refuse([](auto& p) { p.heads = 5; }, "heads", "5");
  refuse([](auto& p) { p.kv_heads = 8; }, "kv_heads", "8");
  refuse([](auto& p) { p.head_dim = 257; }, "head_dim", "257");
  refuse([](auto& p) { p.chunk_size = 0; }, "chunk_size", "0");
  refuse([](auto& p) { p.chunk_size = 1, p.landmark_slots = true; }, "chunk_size", "1");
  refuse([](auto& p) { p.scale = 0.0f; }, "scale", "0");
  refuse([](auto& p) { p.scale = -1.0f; }, "scale", "-1");
  refuse([](auto& p) { p.scale = std::nanf(""); }, "scale", "nan");
  refuse([](auto& p) { p.scale = INFINITY; }, "scale", "inf");
  refuse([](auto& p) { p.cu_seqlens = {1, 100}; }, "cu_seqlens[0]", "1");
  refuse([](auto& p) { p.cu_seqlens = {0, 50, 40, 100}; }, "cu_seqlens[2]", "40");
  refuse([](auto& p) { p.cu_seqlens = {0, 50}; }, "cu_seqlens", "50");
  usual().validate();
}

TEST(AttentionPolicy, refuses_what_it_cannot_mean) {
  const auto refuse = [](auto change, const char* field, const char* value) {
    AttentionPolicy policy;
    change(policy);
    expect_refused([&] { policy.validate(usual()); }, field, value);
  };
  refuse([](auto& p) { p.window = -1; }, "window", "-1");
  refuse([](auto& p) { p.topk = -1; }, "topk", "-1");
  refuse([](auto& p) { p.topk = 4097; }, "topk", "4097");
  refuse([](auto& p) { p.sinks = -1; }, "sinks", "-1");
}

TEST(AttentionPolicy, alibi_goes_with_policies_that_choose_nothing) {
  AttentionProblem problem = usual();
  problem.alibi = true;
  expect_refused([&] { AttentionPolicy{}.validate(problem); }, "alibi", "hils");
  AttentionPolicy{.topk = 0}.validate(problem);
  AttentionPolicy{.scorer = Scorer::kNone, .edge = WindowEdge::kToken}.validate(problem);
}

TEST(AttentionPolicy, names_what_is_beyond_plain_logits) {
  EXPECT_EQ(beyond_plain_logits(usual(), {}), "");
  AttentionProblem problem = usual();
  problem.sink_logits = {0, 0, 0, 0};
  EXPECT_EQ(beyond_plain_logits(problem, {}), "sink_logits = 0.000000, ...");
  problem.alibi = true;
  EXPECT_EQ(beyond_plain_logits(problem, {}), "alibi = 1");
  problem.logit_cap = 30.0f;
  EXPECT_EQ(beyond_plain_logits(problem, {}), "logit_cap = 30.000000");
  EXPECT_EQ(beyond_plain_logits(usual(), {.edge = WindowEdge::kSegment}), "edge = segment");
}

// The sums behind the group rank are exact for so many chunks and no more.
TEST(AttentionPolicy, refuses_more_chunks_than_it_can_sum_exactly) {
  AttentionProblem problem = usual();
  problem.tokens = kMaxChunks * problem.chunk_size;
  expect_refused([&] { AttentionPolicy{}.validate(problem); }, "chunk_size", "64");
  problem.tokens -= problem.chunk_size;
  AttentionPolicy{}.validate(problem);
  problem.tokens *= 4;
  AttentionPolicy{.scorer = Scorer::kNone}.validate(problem);
}

// Quest bounds a logit, which is no mass; a landmark needs its slot.
TEST(AttentionPolicy, refuses_scorers_without_what_they_need) {
  AttentionProblem problem = usual();
  expect_refused([&] { AttentionPolicy{.scorer = Scorer::kQuest}.validate(problem); }, "quest", "union");
  expect_refused([&] { AttentionPolicy{.scorer = Scorer::kLandmark}.validate(problem); }, "landmark", "slots");
  AttentionPolicy{.scorer = Scorer::kQuest, .fusion = Fusion::kUnion}.validate(problem);
  problem.landmark_slots = true;
  AttentionPolicy{.scorer = Scorer::kLandmark}.validate(problem);
}

TEST(AttentionPolicy, names_what_is_not_the_usual_choice) {
  const auto refuse = [](const AttentionPolicy& policy, const char* field, const char* value) {
    expect_refused([&] { policy.expect_usual_choice("a snapshot"); }, std::string(field) + " = " + value,
                   "a snapshot; limit: ");
  };
  refuse({.scorer = Scorer::kLandmark}, "scorer", "landmark");
  refuse({.scorer = Scorer::kQuest, .fusion = Fusion::kUnion}, "scorer", "quest");
  refuse({.choice = Choice::kHead}, "choice", "head");
  refuse({.choice = Choice::kAll}, "choice", "all");
  refuse({.fusion = Fusion::kUnion}, "fusion", "union");
  AttentionPolicy{.scorer = Scorer::kOracle}.expect_usual_choice("a snapshot");
  AttentionPolicy{.scorer = Scorer::kNone, .choice = Choice::kHead}.expect_usual_choice("a snapshot");
}

}  // namespace
}  // namespace ringmark
