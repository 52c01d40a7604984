// Attention to a compressive memory with ranks as threads.
#include "kernels/reference/compressive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/compressive/prefill.h"
#include "tests/runtime/pooled_runs.h"
#include "tests/support/pick.h"
#include "tests/support/refusal.h"

namespace ringmark::test {
namespace {

struct CompressiveLayer {
  CompressivePolicy policy;
  TestLayer layer;  // its policy is that of the exact keys

  CompressiveLayer(const AttentionProblem& problem, const CompressivePolicy& compressive, std::uint64_t seed)
      : policy(compressive), layer(random_layer(problem, compressive.exact_policy(), seed)) {
    policy.validate(problem);
    layer.retrieval_q.clear();
  }

  PooledEngine engine() const {
    return [this](comm::Communicator& communicator, comm::BlockTransport& transport, const partition::Layout& layout,
                  runtime::LayerShard& shard, const runtime::PooledOptions& options) {
      runtime::SilentProgress progress;
      return runtime::compressive::prefill(communicator, transport, layer.problem, policy, layout, shard, options,
                                           progress);
    };
  }

  // Bytes that one row may need at once, twice.
  std::int64_t needed() const {
    const std::int64_t chunks = (policy.memory + policy.segment) / layer.problem.chunk_size + 2;
    return 2 * chunks * layer.problem.kv_heads * kernels::BlockShape::of(layer.problem).bytes();
  }
};

// Head dim 1, zero queries unless given, chunks of 2.
CompressiveLayer tiny(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                      const CompressivePolicy& policy, bool landmark_slots = false) {
  AttentionProblem problem;
  problem.tokens = static_cast<std::int64_t>(k.size());
  problem.head_dim = 1;
  problem.chunk_size = 2;
  problem.dtype = DType::kFloat32;
  problem.scale = 1.0f;
  problem.landmark_slots = landmark_slots;
  CompressiveLayer layer(problem, policy, 0);
  layer.layer.q = stored(q);
  layer.layer.k = stored(k);
  layer.layer.v = stored(v);
  return layer;
}

// L = M = c = 2, C = 1: token 6 sees tokens 4..6 exactly and the mean of 2 and 3; 0 and 1 have fallen out. Token 3 sees
// 0..3 exactly.
TEST(Compressive, zero_queries_average_exact_and_pooled_keys) {
  const std::vector<float> values = {1, 1, 6, 10, 2, 4, 6, 100};
  const CompressiveLayer layer = tiny(std::vector<float>(8, 0.0f), {1, 2, 3, 4, 5, 6, 7, 8}, values,
                                      {.segment = 2, .memory = 2, .slots = 1, .rate = 2});
  const GatheredResult result = run_on_all_routes(layer.layer, layer.needed(), layer.engine());
  EXPECT_FLOAT_EQ(result.out[6], (8 + 2 + 4 + 6) / 4.0f);
  EXPECT_FLOAT_EQ(result.lse[6], std::log(4.0f));
  EXPECT_FLOAT_EQ(result.out[3], (1 + 1 + 6 + 10) / 4.0f);
}

// A group is one key: e^(mean of ln 1 and ln 9) = 3, not 1 + 9. Token 4 sees group {0, 1}, then 2, 3, 4.
TEST(Compressive, a_group_weighs_by_the_score_of_its_mean) {
  const std::vector<float> keys = {0, std::log(9.0f), 0, 0, 0};
  const CompressiveLayer layer =
      tiny(std::vector<float>(5, 1.0f), keys, {10, 30, 0, 0, 0}, {.segment = 2, .memory = 2, .slots = 8, .rate = 2});
  const GatheredResult result = run_on_all_routes(layer.layer, layer.needed(), layer.engine());
  EXPECT_NEAR(result.out[4], 3 * 20 / 6.0f, 1e-5);
  EXPECT_NEAR(result.lse[4], std::log(6.0f), 1e-6);
}

// Slots 1, 3, 5 are landmark slots. With groups of one slot they make no key: token 6, without memory, sees 0, 2, 4 as
// groups and itself; with groups of two each group is its one key.
TEST(Compressive, landmark_slots_are_in_no_group) {
  const std::vector<float> zeros(7, 0.0f), values = {4, 900, 8, 900, 12, 900, 16};
  for (const std::int64_t rate : {1, 2}) {
    const CompressiveLayer layer =
        tiny(zeros, zeros, values, {.segment = 2, .memory = 0, .slots = 8, .rate = rate}, true);
    const GatheredResult result = run_on_all_routes(layer.layer, layer.needed(), layer.engine());
    EXPECT_FLOAT_EQ(result.out[6], 10.0f) << "rate " << rate;
    EXPECT_FLOAT_EQ(result.lse[6], std::log(4.0f)) << "rate " << rate;
  }
}

TEST(Compressive, random_layers_match_the_reference_on_any_ranks) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    AttentionProblem problem = random_pooled_problem(random);
    for (std::int64_t head = 0; seed % 3 == 0 && head < problem.heads; ++head) {
      problem.sink_logits.push_back(0.5f * static_cast<float>(head) - 1.0f);
    }
    CompressivePolicy policy;
    policy.rate = problem.chunk_size % 4 == 0 ? pick<std::int64_t>(random, {1, 2, 4, problem.chunk_size}) : 1;
    policy.segment = policy.rate * pick<std::int64_t>(random, {1, 3, 5, 11});
    policy.memory = policy.rate * pick<std::int64_t>(random, {0, 1, 2, 7, 100});
    policy.slots = pick<std::int64_t>(random, {0, 1, 5, 70, 1000});
    const CompressiveLayer layer(problem, policy, seed);
    const GatheredResult result = run_on_all_routes(layer.layer, layer.needed(), layer.engine());
    const auto reference =
        kernels::reference::attend_compressive(layer.layer.widened(), policy, layer.layer.tokens(), 1);
    const std::string what = describe(layer.layer) + " seed " + std::to_string(seed);
    EXPECT_LE(max_difference(result.out, reference.out), 1e-5) << what;
    EXPECT_LE(max_difference(result.lse, reference.lse), 1e-5) << what;
  }
}

// The weights of token 1, 1/3 each with the sink's: out loses a third.
TEST(Compressive, a_sink_logit_is_one_more_term_of_the_only_softmax) {
  CompressiveLayer layer = tiny({0, 0}, {5, 6}, {3, 9}, {.segment = 2, .memory = 2, .slots = 1, .rate = 2});
  layer.layer.problem.sink_logits = {0.0f};
  const GatheredResult result = run_on_all_routes(layer.layer, layer.needed(), layer.engine());
  EXPECT_FLOAT_EQ(result.out[1], 4.0f);
  EXPECT_FLOAT_EQ(result.lse[1], std::log(3.0f));
}

// Groups of one slot and slots for all of them leave nothing out.
TEST(Compressive, rate_1_with_room_for_everything_is_dense_attention) {
  AttentionProblem problem;
  problem.tokens = 200;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.chunk_size = 16;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 61, 200};
  const CompressiveLayer layer(problem, {.segment = 8, .memory = 5, .slots = 1000, .rate = 1}, 5);
  const GatheredResult result = run_pooled(layer.layer, {.ranks = 3}, layer.engine());
  expect_dense_attention(result, layer.layer);
}

TEST(Compressive, packed_documents_equal_single_runs) {
  const AttentionProblem problem = packed_problem();
  const CompressiveLayer packed(problem, {.segment = 12, .memory = 8, .slots = 6, .rate = 4}, 9);
  const GatheredResult whole = run_pooled(packed.layer, {.ranks = 3}, packed.engine());
  expect_bits_of_single_runs(whole, problem, [&](std::int64_t begin, std::int64_t end) {
    CompressiveLayer single = packed;
    single.layer = slice(packed.layer, begin, end);
    return run_pooled(single.layer, {.ranks = 2}, single.engine());
  });
}

TEST(Compressive, what_does_not_fit_is_refused_by_name) {
  AttentionProblem problem;
  problem.tokens = 64;
  const auto refusal = [&](const CompressivePolicy& policy) -> std::string {
    return refusal_of([&] { policy.validate(problem); });
  };
  EXPECT_EQ(refusal({.segment = 8, .memory = 8, .slots = 8, .rate = 3}),
            "chunk_size = 64 is not a multiple of compression_rate = 3");
  EXPECT_EQ(refusal({.segment = 6, .memory = 8, .slots = 8, .rate = 4}),
            "segment = 6 is not a multiple of compression_rate = 4");
  EXPECT_EQ(refusal({.segment = 8, .memory = 2, .slots = 8, .rate = 4}),
            "memory = 2 is not a multiple of compression_rate = 4");
  EXPECT_EQ(refusal({.segment = 0, .memory = 2, .slots = 8, .rate = 1}), "segment = 0 is outside [1, 1099511627776]");
  problem.alibi = true;
  EXPECT_EQ(refusal({.segment = 8, .memory = 8, .slots = 8, .rate = 4}), "alibi does not go with policy compressive");
  problem.alibi = false;
  EXPECT_EQ(refusal({.segment = 8, .memory = 8, .slots = 8, .rate = 4}), "");
}

}  // namespace
}  // namespace ringmark::test
