// Landmark Attention at the positions of a cache, with ranks as threads. The layers of these tests are rotated, as a
// shard is after it was loaded; the oracle, which knows no sum of rotations, gets them without.
#include "kernels/reference/stingy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "comm/loopback_transport.h"
#include "comm/thread_ranks.h"
#include "kvstore/snapshot.h"
#include "runtime/kept_layer.h"
#include "runtime/memory_plan.h"
#include "tests/runtime/prefill_checks.h"
#include "tests/support/pick.h"
#include "tests/support/refusal.h"

namespace ringmark::test {
namespace {

using kernels::PositionEncoding;
using kernels::PositionKind;

constexpr Bounds kBounds = {1e-5, 1e-5};
constexpr std::int64_t kBudget = std::int64_t{64} << 20;
constexpr std::int64_t kSpan = 96;  // chunks enough for the longest test layer
constexpr Choice kChoices[] = {Choice::kGroup, Choice::kHead, Choice::kAll};

AttentionPolicy stingy(std::int64_t topk, Choice choice) {
  AttentionPolicy policy;
  policy.window = 0;
  policy.topk = topk;
  policy.scorer = Scorer::kLandmark;
  policy.choice = choice;
  policy.landmark_positions = LandmarkPositions::kStingy;
  return policy;
}

AttentionProblem random_problem(std::mt19937_64& random) {
  AttentionProblem problem;
  problem.chunk_size = pick<std::int64_t>(random, {4, 8, 16});
  problem.tokens = pick<std::int64_t>(random, {1, 7, 65, 131, 200, 233});
  problem.kv_heads = pick<std::int64_t>(random, {1, 2});
  problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 4});
  problem.head_dim = pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256});
  problem.dtype = pick(random, {DType::kBfloat16, DType::kFloat16, DType::kFloat32});
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = true;
  if (random() % 3 == 0) {
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(problem.tokens));
    problem.cu_seqlens = {0, cut, cut, problem.tokens};
  }
  problem.validate();
  return problem;
}

PositionEncoding random_encoding(std::mt19937_64& random) {
  PositionEncoding encoding;
  encoding.kind = pick(random, {PositionKind::kRope, PositionKind::kYarn, PositionKind::kXpos});
  encoding.layout = pick(random, {kernels::PairLayout::kHalf, kernels::PairLayout::kInterleaved});
  encoding.rotary_dim = pick<std::int64_t>(random, {0, 24});
  if (encoding.kind == PositionKind::kYarn) {
    encoding.factor = 8.0;
    encoding.original_length = 64;
  }
  return encoding;
}

// Against the definition, of rows that were never rotated.
kernels::reference::Result run_oracle(const TestLayer& layer, const PositionEncoding& encoding) {
  using kernels::reference::rotated;
  const AttentionProblem& p = layer.problem;
  kernels::reference::Layer raw = layer.widened();
  std::vector<std::int64_t> back;
  const partition::SequenceGrid grid(p, layer.policy);
  for (const TokenId token : layer.tokens()) back.push_back(grid.document_of(token).tokens.begin - token);
  raw.q = rotated(encoding, kernels::Side::kQuery, raw.q, p.heads, p.head_dim, back);
  raw.k = rotated(encoding, kernels::Side::kKey, raw.k, p.kv_heads, p.head_dim, back);
  return kernels::reference::attend_stingy(raw, encoding, layer.tokens(), 1);
}

TEST(StingyPositions, of_random_layers_give_one_result_on_any_ranks_near_the_oracle) {
  std::mt19937_64 random(500);
  std::uint64_t seed = 500;
  for (const Choice choice : kChoices) {
    for (int round = 0; round < 10; ++round, ++seed) {
      const AttentionProblem problem = random_problem(random);
      const PositionEncoding encoding = random_encoding(random);
      const TestLayer layer =
          random_layer(problem, stingy(pick<std::int64_t>(random, {1, 2, 3, 4, 9, kSpan}), choice), seed);
      const std::int64_t budget = round % 3 == 0 ? needed_budget(layer) : kBudget;
      expect_near_reference(same_on_any_ranks(layer, budget, encoding), layer, run_oracle(layer, encoding), kBounds,
                            "seed " + std::to_string(seed) + " " + describe(layer));
    }
  }
}

PositionEncoding rope() {
  PositionEncoding encoding;
  encoding.kind = PositionKind::kRope;
  return encoding;
}

// Nothing moves in a cache with room for all: the bits of plain landmark attention.
TEST(StingyPositions, of_a_cache_with_room_for_all_are_the_true_ones) {
  for (const Choice choice : kChoices) {
    const TestLayer layer = random_layer(small_problem(true), stingy(18, choice), 51);
    TestLayer plain = layer;
    plain.policy.landmark_positions = LandmarkPositions::kTrue;
    const GatheredResult got = same_on_any_ranks(layer, kBudget, rope());
    const GatheredResult want = same_on_any_ranks(plain, kBudget);
    EXPECT_EQ(got.out, want.out);
    EXPECT_EQ(got.lse, want.lse);
    EXPECT_EQ(got.chunks, want.chunks);
  }
  // With room for 16 rows that have more chunks before theirs differ: with 18 two landmarks share a position.
  const TestLayer layer = random_layer(small_problem(true), stingy(16, Choice::kHead), 51);
  TestLayer plain = layer;
  plain.policy.landmark_positions = LandmarkPositions::kTrue;
  const std::vector<float> got = same_on_any_ranks(layer, kBudget, rope()).lse;
  const std::vector<float> want = same_on_any_ranks(plain, kBudget).lse;
  const std::ptrdiff_t fits = 17 * 8 * 4, shares = 18 * 8 * 4;  // [rows, heads]
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + fits, want.begin()));
  EXPECT_NE(std::vector(got.begin() + shares, got.end()), std::vector(want.begin() + shares, want.end()));
}

// Rows of a layer turned by their slots in its one document.
TestLayer rotated_by_slots(TestLayer layer) {
  const AttentionProblem& p = layer.problem;
  std::vector<std::int64_t> slots;
  for (const TokenId token : layer.tokens()) slots.push_back(token.value());
  const RowsView q{layer.q.data(), p.dtype, p.tokens, p.heads, p.head_dim};
  const RowsView k{layer.k.data(), p.dtype, p.tokens, p.kv_heads, p.head_dim};
  kernels::rotate(rope(), kernels::Side::kQuery, q, slots, layer.q, 1);
  kernels::rotate(rope(), kernels::Side::kKey, k, slots, layer.k, 1);
  return layer;
}

// A text of 20 chunks with K = 3, and one of 5: chunk 2 of the first, then its last four. The last K chunks and the
// current one are where they were, and the old chunk is met as if it stood right before them.
TEST(StingyPositions, meet_an_old_chunk_as_if_it_stood_before_the_last_ones) {
  constexpr std::int64_t kSlots = 8, kOld = 2, kTopk = 3, kHeads = 8, kTokens = 20 * kSlots, kShort = 5 * kSlots;
  AttentionProblem problem = small_problem(true);
  problem.heads = kHeads;
  problem.kv_heads = 1;
  problem.tokens = kTokens;
  TestLayer text = random_layer(problem, stingy(kTopk, Choice::kHead), 52);
  const std::int64_t key_bytes = problem.head_dim * size_of(problem.dtype);
  for (std::int64_t c = 0; c < 16; ++c) {  // far landmarks that nobody looks for
    if (c != kOld) std::fill_n(text.k.begin() + (c * kSlots + kSlots - 1) * key_bytes, key_bytes, std::byte{0});
  }
  TestLayer cut = slice(text, kTokens - kShort, kTokens);
  for (const auto& [from, to] : {std::pair{&text.q, &cut.q}, {&text.k, &cut.k}, {&text.v, &cut.v}}) {
    const auto chunk_bytes = std::ssize(*from) / kTokens * kSlots;
    std::copy_n(from->begin() + kOld * chunk_bytes, chunk_bytes, to->begin());
  }
  const GatheredResult of_text = same_on_any_ranks(rotated_by_slots(text), kBudget, rope());
  const GatheredResult of_cut = same_on_any_ranks(rotated_by_slots(cut), kBudget, rope());
  int compared = 0;
  for (std::int64_t of_last = -kSlots * kHeads; of_last < 0; ++of_last) {  // rows and heads of the last chunk
    const auto* const far = &of_text.chunks[static_cast<std::size_t>((kTokens * kHeads + of_last) * kTopk)];
    const auto* const near = &of_cut.chunks[static_cast<std::size_t>((kShort * kHeads + of_last) * kTopk)];
    if (far[0] != kOld || far[1] < 16) continue;  // not the same keys in both
    ++compared;
    EXPECT_EQ(std::vector<std::int32_t>({near[0], near[1], near[2]}),
              std::vector<std::int32_t>({0, far[1] - 15, far[2] - 15}));
    for (std::int64_t x = of_last * problem.head_dim; x < (of_last + 1) * problem.head_dim; ++x) {
      EXPECT_NEAR(of_text.out[static_cast<std::size_t>(kTokens * kHeads * problem.head_dim + x)],
                  of_cut.out[static_cast<std::size_t>(kShort * kHeads * problem.head_dim + x)], 1e-5);
    }
  }
  EXPECT_GT(compared, 8);
}

TEST(StingyPositions, are_refused_without_rotation_by_snapshots_and_by_decode) {
  const AttentionPolicy policy = stingy(3, Choice::kGroup);
  const TestLayer layer = random_layer(small_problem(true), policy, 53);
  comm::run_thread_ranks(1, [&](comm::Communicator& communicator) {
    EXPECT_EQ(refusal_of([&] {
                run_prefill(communicator, comm::TransportChoice::kAuto, layer, partition::Balance::kContiguous, {});
              }),
              "landmark_positions = stingy needs queries and keys that rotate");
    comm::LoopbackTransport transport(communicator);
    const runtime::KeptShape shape{0, layer.problem, policy};
    EXPECT_EQ(refusal_of([&] { runtime::KeptLayer(communicator, transport, shape, 1); }),
              "scorer = landmark does not go with decode; limit: hils, mean, oracle");
  });
  EXPECT_EQ(refusal_of([&] { kvstore::snapshot_bytes(layer.problem, policy, kvstore::BlockFormat::kAsInput); }),
            "scorer = landmark does not go with a snapshot; limit: hils, mean, oracle");
}

// By hand: 19 chunks of 2 heads of 32 floats and a bias each, packed and as a list; of 8192 rows 4 heads of 32 floats,
// and lists of 4 heads with 3 candidates of 8 bytes and a sum of 24.
TEST(StingyPositions, memory_counts_what_is_turned) {
  const runtime::MemoryPlan plan = runtime::plan_memory(small_problem(true), stingy(3, Choice::kHead), {1, 150, 19},
                                                        false, runtime::Merge::kScores, {});
  EXPECT_EQ(item_bytes(plan, "turned landmarks"), 2 * 19 * 2 * 33 * 4);
  EXPECT_EQ(item_bytes(plan, "turned queries"), 8192 * (4 * 32 * 4 + 4 * (3 * 8 + 24)));
}

}  // namespace
}  // namespace ringmark::test
