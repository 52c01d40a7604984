// Native sparse attention with ranks as threads.
#include "kernels/reference/nsa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/isa.h"
#include "runtime/nsa/prefill.h"
#include "tests/runtime/pooled_runs.h"
#include "tests/support/pick.h"
#include "tests/support/refusal.h"

namespace ringmark::test {
namespace {

struct NsaLayer {
  NsaPolicy policy;
  TestLayer layer;           // its policy is that of the window
  std::vector<float> gates;  // [N, H, 3]

  NsaLayer(const AttentionProblem& problem, const NsaPolicy& nsa, std::uint64_t seed, bool tied = false)
      : policy(nsa), layer(random_layer(problem, nsa.window_policy(), seed, tied)) {
    policy.validate(problem);
    layer.retrieval_q.clear();
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> gate(0.0f, 1.0f);
    gates.resize(static_cast<std::size_t>(problem.tokens * problem.heads * 3));
    for (float& value : gates) value = gate(random);
  }

  PooledEngine engine() const {
    return [this](comm::Communicator& communicator, comm::BlockTransport& transport, const partition::Layout& layout,
                  runtime::LayerShard& shard, const runtime::PooledOptions& options) {
      std::vector<float> own;
      const std::int64_t width = layer.problem.heads * 3;
      for (const TokenId token : layout.tokens_of(RankId(communicator.rank()))) {
        own.insert(own.end(), gates.begin() + token.value() * width, gates.begin() + (token.value() + 1) * width);
      }
      runtime::SilentProgress progress;
      return runtime::nsa::prefill(communicator, transport, layer.problem, policy, layout, shard, own, options,
                                   progress);
    };
  }

  // Bytes that one row may need at once, twice.
  std::int64_t needed() const {
    const std::int64_t chunks = std::max(policy.window / layer.problem.chunk_size + 2, policy.topk);
    return 2 * chunks * layer.problem.kv_heads * kernels::BlockShape::of(layer.problem).bytes();
  }
};

// Head dim 1, chunks of 2, gates 1/2, 1/4, 1/4.
NsaLayer tiny(std::int64_t heads, const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
              const NsaPolicy& policy) {
  AttentionProblem problem;
  problem.tokens = static_cast<std::int64_t>(k.size());
  problem.heads = heads;
  problem.head_dim = 1;
  problem.chunk_size = 2;
  problem.dtype = DType::kFloat32;
  problem.scale = 1.0f;
  NsaLayer nsa(problem, policy, 0);
  nsa.layer.q = stored(q);
  nsa.layer.k = stored(k);
  nsa.layer.v = stored(v);
  for (std::size_t i = 0; i < nsa.gates.size(); ++i) nsa.gates[i] = i % 3 == 0 ? 0.5f : 0.25f;
  return nsa;
}

std::vector<std::int32_t> chunks_of(const GatheredResult& result, const NsaLayer& nsa, std::int64_t row) {
  const auto begin = result.chunks.begin() + row * nsa.policy.topk;
  return {begin, begin + nsa.policy.topk};
}

// Every softmax is a mean. At token 5 all three chunks are complete and forced; at token 4 chunk 2 is not complete; at
// token 0 no chunk is.
TEST(Nsa, zero_queries_average_each_branch) {
  const NsaLayer nsa = tiny(1, {0, 0, 0, 0, 0, 0}, {3, 1, 4, 1, 5, 9}, {2, 4, 6, 8, 10, 18}, {.window = 2, .topk = 3});
  const GatheredResult result = run_on_all_routes(nsa.layer, nsa.needed(), nsa.engine());
  EXPECT_FLOAT_EQ(result.out[5], 0.5f * 8 + 0.25f * 8 + 0.25f * 14);
  EXPECT_FLOAT_EQ(result.out[4], 0.5f * 5 + 0.25f * 6 + 0.25f * 9);
  EXPECT_FLOAT_EQ(result.out[0], 0.5f * 0 + 0.25f * 2 + 0.25f * 2);
  EXPECT_FLOAT_EQ(result.lse[5], std::log(6.0f));
  EXPECT_FLOAT_EQ(result.lse[0], 0.0f);
}

// Token 11 may take one chunk besides 0, 4 and 5: the one whose mean key is ln 4; where all are equal, the first.
TEST(Nsa, the_most_important_chunk_is_taken_and_ties_go_by_id) {
  const float high = std::log(4.0f);
  std::vector<float> keys(12, 0.0f);
  keys[6] = high - 1.0f;
  keys[7] = high + 1.0f;
  const NsaPolicy policy{.window = 1, .topk = 4};
  const NsaLayer clear = tiny(1, std::vector<float>(12, 1.0f), keys, std::vector<float>(12, 1.0f), policy);
  EXPECT_EQ(chunks_of(run_on_all_routes(clear.layer, clear.needed(), clear.engine()), clear, 11),
            (std::vector<std::int32_t>{0, 3, 4, 5}));
  const NsaLayer tie =
      tiny(1, std::vector<float>(12, 1.0f), std::vector<float>(12, 0.5f), std::vector<float>(12, 1.0f), policy);
  EXPECT_EQ(chunks_of(run_on_all_routes(tie.layer, tie.needed(), tie.engine()), tie, 11),
            (std::vector<std::int32_t>{0, 1, 4, 5}));
}

// Two heads of one kv head, queries 1 and -1. Chunk 1 weighs 2 of 6 1/3 for head 0 and 1/2 of 7 1/2 for head 1, in all
// 0.382; chunk 2 weighs 1/3 of 6 1/3 and 3 of 7 1/2, in all 0.453, though head 0 alone would take chunk 1.
TEST(Nsa, importance_is_the_sum_over_the_heads_of_a_group) {
  std::vector<float> keys(12, 0.0f);
  keys[2] = keys[3] = std::log(2.0f);
  keys[4] = keys[5] = -std::log(3.0f);
  std::vector<float> queries;
  for (int token = 0; token < 12; ++token) queries.insert(queries.end(), {1.0f, -1.0f});
  const NsaLayer nsa = tiny(2, queries, keys, std::vector<float>(12, 1.0f), {.window = 1, .topk = 4});
  EXPECT_EQ(chunks_of(run_on_all_routes(nsa.layer, nsa.needed(), nsa.engine()), nsa, 11),
            (std::vector<std::int32_t>{0, 2, 4, 5}));
}

// Rows whose choice rounding may change are left out.
void check_against_reference(const NsaLayer& nsa, const GatheredResult& result) {
  const AttentionProblem& problem = nsa.layer.problem;
  const auto reference =
      kernels::reference::attend_nsa(nsa.layer.widened(), nsa.policy, nsa.layer.tokens(), nsa.gates, 1);
  const std::int64_t group = problem.group();
  double worst = 0.0;
  for (std::int64_t row = 0; row < problem.tokens; ++row) {
    for (std::int64_t g = 0; g < problem.kv_heads; ++g) {
      const auto slots = reference.selection.slots(row, g);
      const std::int64_t at = row * problem.kv_heads + g;
      const double margin = reference.margin[static_cast<std::size_t>(at)];
      if (!std::equal(slots.begin(), slots.end(), result.chunks.begin() + at * nsa.policy.topk)) {
        EXPECT_LT(margin, 1e-5) << describe(nsa.layer) << " row " << row << " kv head " << g;
        continue;
      }
      for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
        const auto head = static_cast<std::size_t>(row * problem.heads + h);
        worst = std::max(worst, max_difference({result.lse[head]}, {reference.lse[head]}));
        for (auto x = head * static_cast<std::size_t>(problem.head_dim);
             x < (head + 1) * static_cast<std::size_t>(problem.head_dim); ++x) {
          worst = std::max(worst, max_difference({result.out[x]}, {reference.out[x]}));
        }
      }
    }
  }
  EXPECT_LE(worst, 1e-5) << describe(nsa.layer) << " K=" << nsa.policy.topk;
}

TEST(Nsa, random_layers_match_the_reference_on_any_ranks) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    const AttentionProblem problem = random_pooled_problem(random);
    const std::int64_t s = problem.chunk_size;
    const NsaPolicy policy{
        .window = pick<std::int64_t>(random, {1, std::max<std::int64_t>(1, s - 1), s, s + 1, 40, 1000}),
        .topk = pick<std::int64_t>(random, {3, 4, 6, 30})};
    const NsaLayer nsa(problem, policy, seed, seed % 5 == 0);
    check_against_reference(nsa, run_on_all_routes(nsa.layer, nsa.needed(), nsa.engine()));
  }
}

// K at all chunks: the selected branch alone is exact causal attention.
TEST(Nsa, taking_every_chunk_is_dense_attention) {
  std::mt19937_64 random(3);
  AttentionProblem problem = random_pooled_problem(random);
  problem.tokens = 230;
  problem.chunk_size = 16;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 71, 230};
  NsaLayer nsa(problem, {.window = 5, .topk = 20}, 4);
  for (std::size_t i = 0; i < nsa.gates.size(); ++i) nsa.gates[i] = i % 3 == 1 ? 1.0f : 0.0f;
  const GatheredResult result = run_pooled(nsa.layer, {.ranks = 3}, nsa.engine());
  expect_dense_attention(result, nsa.layer);
}

TEST(Nsa, packed_documents_equal_single_runs) {
  AttentionProblem problem = packed_problem();
  problem.landmark_slots = true;
  const NsaLayer packed(problem, {.window = 20, .topk = 4}, 9);
  const GatheredResult whole = run_pooled(packed.layer, {.ranks = 3}, packed.engine());
  const std::int64_t width = problem.heads * 3;
  expect_bits_of_single_runs(whole, problem, [&](std::int64_t begin, std::int64_t end) {
    NsaLayer single = packed;
    single.layer = slice(packed.layer, begin, end);
    single.gates.assign(packed.gates.begin() + begin * width, packed.gates.begin() + end * width);
    return run_pooled(single.layer, {.ranks = 2}, single.engine());
  });
}

// Chunks 0..3 of a rank are asked for by the other only where they were chosen or lie in a window.
TEST(Nsa, only_needed_blocks_move) {
  AttentionProblem problem;
  problem.tokens = 512;
  problem.heads = problem.kv_heads = 1;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  const NsaLayer nsa(problem, {.window = 16, .topk = 3}, 2);
  const GatheredResult result = run_pooled(nsa.layer, {.ranks = 2}, nsa.engine());
  // Rank 1 has chunks 16..31: the window of its first rows and their chunk before reach into chunk 15, chunk 0 is
  // forced. Each branch fetches for itself.
  const std::int64_t block = kernels::BlockShape::of(problem).bytes();
  EXPECT_EQ(result.bytes_fetched, 3 * block);
}

// The same bits from the other instruction set.
TEST(Nsa, bits_do_not_depend_on_the_instruction_set) {
  AttentionProblem problem;
  problem.tokens = 200;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.chunk_size = 16;
  problem.logit_cap = 2.0f;
  const NsaLayer nsa(problem, {.window = 21, .topk = 5}, 6);
  const GatheredResult native = run_pooled(nsa.layer, {.ranks = 2}, nsa.engine());
  const kernels::cpu::Isa before = kernels::cpu::active_isa();
  kernels::cpu::force_isa(kernels::cpu::Isa::kAvx2);
  const GatheredResult baseline = run_pooled(nsa.layer, {.ranks = 2}, nsa.engine());
  kernels::cpu::force_isa(before);
  EXPECT_EQ(native.out, baseline.out);
  EXPECT_EQ(native.lse, baseline.lse);
  EXPECT_EQ(native.chunks, baseline.chunks);
}

TEST(Nsa, what_does_not_fit_is_refused_by_name) {
  AttentionProblem problem;
  problem.tokens = 64;
  const auto refusal = [&](const NsaPolicy& policy) -> std::string {
    return refusal_of([&] { policy.validate(problem); });
  };
  EXPECT_EQ(refusal({.window = 16, .topk = 2}), "topk = 2 is outside [3, 4096]");
  EXPECT_EQ(refusal({.window = 0, .topk = 3}), "window = 0 is outside [1, 1099511627776]");
  problem.alibi = true;
  EXPECT_EQ(refusal({.window = 16, .topk = 3}), "alibi does not go with policy nsa");
  problem.alibi = false;
  problem.sink_logits = {0.0f};
  EXPECT_EQ(refusal({.window = 16, .topk = 3}), "sink_logits do not go with policy nsa: it has three softmaxes");
  problem.sink_logits.clear();
  EXPECT_EQ(refusal({.window = 16, .topk = 3}), "");
}

}  // namespace
}  // namespace ringmark::test
