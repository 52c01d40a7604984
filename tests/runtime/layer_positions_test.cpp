#include "runtime/layer_positions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/positions/rotate.h"
#include "tests/support/test_layer.h"

namespace ringmark::runtime {
namespace {

using kernels::PositionEncoding;
using kernels::PositionKind;
using test::TestLayer;

PositionEncoding encoding_of(PositionKind kind) {
  PositionEncoding encoding;
  encoding.kind = kind;
  encoding.original_length = 4096;
  return encoding;
}

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, DType dtype = DType::kFloat32) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.dtype = dtype;
  return problem;
}

std::vector<TokenId> tokens_up_to(std::int64_t count) {
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < count; ++token) tokens.emplace_back(token);
  return tokens;
}

TEST(LayerPositions, start_again_at_every_document) {
  AttentionProblem problem = problem_of(9, 2);
  problem.cu_seqlens = {0, 5, 5, 9};
  EXPECT_EQ(positions_in_documents(problem, tokens_up_to(9)), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3}));
  // Chunks of one ordinary token and a landmark, which has the position of the token behind it.
  problem.landmark_slots = true;
  EXPECT_EQ(positions_in_documents(problem, tokens_up_to(9)), (std::vector<std::int64_t>{0, 1, 1, 2, 2, 0, 1, 1, 2}));
  EXPECT_EQ(positions_in_documents(problem, std::vector{TokenId(8), TokenId(1)}), (std::vector<std::int64_t>{2, 1}));
}

TEST(LayerPositions, rows_are_rotated_alike_on_any_layout) {
  AttentionProblem problem = problem_of(331, 16, DType::kBfloat16);
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 100, 331};
  const AttentionPolicy policy;
  const TestLayer layer = test::random_layer(problem, policy, 1);
  const PositionEncoding encoding = encoding_of(PositionKind::kHope);
  const partition::SequenceGrid grid(problem, policy);
  const auto rotated = [&](int ranks, partition::Balance balance, int rank) {
    const partition::Layout layout = partition::make_layout(grid, ranks, balance);
    LayerShard shard = layer.shard(layout, RankId(rank));
    const std::vector<TokenId> tokens = layout.tokens_of(RankId(rank));
    rotate_rows(encoding, tokens, positions_in_documents(problem, tokens), shard, 2);
    return std::pair{std::move(shard), tokens};
  };
  const LayerShard whole = rotated(1, partition::Balance::kContiguous, 0).first;
  for (const auto balance :
       {partition::Balance::kContiguous, partition::Balance::kZigzag, partition::Balance::kRotate}) {
    for (int rank = 0; rank < 3; ++rank) {
      const auto part = rotated(3, balance, rank);
      const LayerShard& shard = part.first;
      const std::vector<TokenId>& tokens = part.second;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto same = [&](const RowsView& own, const RowsView& all) {
          const auto bytes = static_cast<std::size_t>(all.heads * all.head_dim * size_of(all.dtype));
          return std::memcmp(own.row(static_cast<std::int64_t>(i), 0), all.row(tokens[i].value(), 0), bytes) == 0;
        };
        EXPECT_TRUE(same(shard.queries(), whole.queries()) && same(shard.keys(), whole.keys()) &&
                    same(shard.values(), whole.values()) && same(shard.retrieval_queries(), whole.retrieval_queries()))
            << "token " << tokens[i] << " of rank " << rank;
      }
    }
  }
  EXPECT_EQ(std::memcmp(whole.values().data, layer.v.data(), layer.v.size()), 0);
  EXPECT_NE(std::memcmp(whole.keys().data, layer.k.data(), layer.k.size()), 0);
}

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(LayerPositions, refuses_layers_that_an_encoding_does_not_reach) {
  AttentionProblem problem = problem_of(kernels::kMaxPosition + 2, 64);
  const PositionEncoding rope = encoding_of(PositionKind::kRope);
  EXPECT_NE(refusal([&] { check_encoding(rope, problem, false); }).find("position 268435457 is outside"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { check_encoding(rope, problem, true); }), "accepted");
  problem.cu_seqlens = {0, 2, problem.tokens - 1, problem.tokens};
  EXPECT_EQ(refusal([&] { check_encoding(rope, problem, false); }), "accepted");
  EXPECT_NE(refusal([&] { check_encoding(encoding_of(PositionKind::kXpos), problem, false); }).find("overflow"),
            std::string::npos);
  problem.head_dim = 65;
  EXPECT_NE(refusal([&] { check_encoding(rope, problem, true); }).find("rotary_dim = 65 is odd"), std::string::npos);
}

TEST(LayerPositions, names_a_row_that_leaves_the_range_of_its_type) {
  const AttentionProblem problem = problem_of(4, 4, DType::kFloat16);
  LayerShard shard(problem, 4, false);
  // Both elements of pair 0 near the largest fp16: turned by 1 rad their sum is above it.
  const std::uint16_t large = float_to_float16(65000.0f);
  std::byte* const row = shard.k().data() + 3 * shard.keys().heads * 64 * 2;
  std::memcpy(row, &large, 2);
  std::memcpy(row + std::size_t{64}, &large, 2);
  const std::vector<std::int64_t> positions = {0, 0, 0, 1};
  const std::string text =
      refusal([&] { rotate_rows(encoding_of(PositionKind::kRope), tokens_up_to(4), positions, shard, 1); });
  EXPECT_NE(text.find("k leaves the range of fp16 at token 3"), std::string::npos) << text;
}

// Rows of a whole layer in token order, rotated with positions from `base` on.
TestLayer placed(TestLayer layer, const PositionEncoding& encoding, std::int64_t base) {
  const AttentionProblem& p = layer.problem;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(p.tokens));
  std::iota(positions.begin(), positions.end(), base);
  const auto turn = [&](std::vector<std::byte>& rows, kernels::Side side, std::int64_t heads) {
    kernels::rotate(encoding, side, {rows.data(), p.dtype, p.tokens, heads, p.head_dim}, positions, rows, 1);
  };
  turn(layer.q, kernels::Side::kQuery, p.heads);
  turn(layer.k, kernels::Side::kKey, p.kv_heads);
  if (!layer.retrieval_q.empty()) turn(layer.retrieval_q, kernels::Side::kQuery, p.heads);
  return layer;
}

test::GatheredResult run(const TestLayer& layer, int ranks) {
  test::GatheredResult result;
  comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
    PrefillOptions options;
    options.fetch_budget = test::needed_budget(layer);
    auto gathered =
        test::run_prefill(communicator, comm::TransportChoice::kAuto, layer, partition::Balance::kZigzag, options);
    if (communicator.rank() == 0) result = std::move(gathered);
  });
  return result;
}

// Pair j of a head of d elements turns by position theta^(-2j/d), theta = 10000; halves.
std::vector<double> turned(const double* row, std::int64_t dims, std::int64_t position) {
  std::vector<double> out(static_cast<std::size_t>(dims));
  for (std::int64_t j = 0; j < dims / 2; ++j) {
    const double angle =
        static_cast<double>(position) * std::pow(1e4, -2.0 * static_cast<double>(j) / static_cast<double>(dims));
    const double a = row[j], b = row[j + dims / 2];
    out[static_cast<std::size_t>(j)] = a * std::cos(angle) - b * std::sin(angle);
    out[static_cast<std::size_t>(j + dims / 2)] = a * std::sin(angle) + b * std::cos(angle);
  }
  return out;
}

// The output of a head of a query that sees a cache of the first `sinks` tokens of its document and the last `window`,
// everything rotated by its place in the cache.
std::vector<double> attend_cache(const kernels::reference::Layer& plain, std::int64_t start, std::int64_t o,
                                 std::int64_t head) {
  const AttentionProblem& p = plain.problem;
  const std::int64_t kv_head = head / p.group();
  std::vector<std::int64_t> cache;
  for (std::int64_t j = 0; j <= o; ++j) {
    const bool is_landmark = p.landmark_slots && j % p.chunk_size == p.chunk_size - 1;
    if (!is_landmark && (j < plain.policy.sinks || o - j < plain.policy.window)) cache.push_back(j);
  }
  // The place of the query is that of its own key; a landmark has none and stands where the next token will.
  const auto place = std::count_if(cache.begin(), cache.end(), [&](std::int64_t j) { return j < o; });
  const std::vector<double> q =
      turned(&plain.q[static_cast<std::size_t>(((start + o) * p.heads + head) * p.head_dim)], p.head_dim, place);
  std::vector<double> out(static_cast<std::size_t>(p.head_dim), 0.0);
  double mass = 0.0;
  for (std::size_t n = 0; n < cache.size(); ++n) {
    const auto at = static_cast<std::size_t>(((start + cache[n]) * p.kv_heads + kv_head) * p.head_dim);
    const std::vector<double> k = turned(&plain.k[at], p.head_dim, static_cast<std::int64_t>(n));
    const double weight = std::exp(double{p.scale} * std::inner_product(q.begin(), q.end(), k.begin(), 0.0));
    for (std::size_t x = 0; x < out.size(); ++x) out[x] += weight * plain.v[at + x];
    mass += weight;
  }
  for (double& component : out) component /= mass > 0.0 ? mass : 1.0;
  return out;
}

// StreamingLLM: a cache whose keys are rotated anew, by their place in it, at every step.
TEST(LayerPositions, sinks_are_attended_as_in_a_cache_that_is_rotated_anew) {
  for (const bool slots : {false, true}) {
    for (const std::int64_t sinks : {1, 4, 11}) {
      AttentionProblem problem = problem_of(150, 8);
      problem.head_dim = 32;
      problem.landmark_slots = slots;
      problem.cu_seqlens = {0, 33, 150};
      const AttentionPolicy policy{.window = 13, .topk = 0, .sinks = sinks, .edge = WindowEdge::kToken};
      const TestLayer plain = test::random_layer(problem, policy, 4);
      const PositionEncoding rope = encoding_of(PositionKind::kRope);
      const partition::SequenceGrid grid(problem, policy);
      const partition::Layout layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
      LayerShard shard = plain.shard(layout, RankId(0));
      const std::vector<TokenId> tokens = layout.tokens_of(RankId(0));
      make_sink_queries(rope, problem, grid, tokens, shard, 1);
      rotate_rows(rope, tokens, positions_in_documents(problem, tokens), shard, 1);
      const TestLayer rotated{.problem = problem,
                              .policy = policy,
                              .q = shard.q(),
                              .retrieval_q = {},
                              .k = shard.k(),
                              .v = shard.v(),
                              .sink_q = shard.sink_q()};
      const kernels::reference::Layer widened = plain.widened();
      for (const int ranks : {1, 3}) {
        const test::GatheredResult got = run(rotated, ranks);
        for (std::int64_t token = 0; token < problem.tokens; ++token) {
          const std::int64_t start = token < 33 ? 0 : 33;
          for (std::int64_t head = 0; head < problem.heads; ++head) {
            const std::vector<double> want = attend_cache(widened, start, token - start, head);
            for (std::size_t x = 0; x < want.size(); ++x) {
              ASSERT_NEAR(got.out[static_cast<std::size_t>(token * problem.heads + head) * want.size() + x], want[x],
                          2e-5)
                  << "token " << token << " head " << head << " sinks " << sinks << " slots " << slots;
            }
          }
        }
      }
    }
  }
}

// Without landmarks a query stands at min(o, sinks + W - 1), in every document from its own start: as if it were
// rotated by that position.
TEST(LayerPositions, sink_queries_stand_at_the_end_of_a_full_cache) {
  AttentionProblem problem = problem_of(60, 8);
  problem.cu_seqlens = {0, 20, 60};
  const AttentionPolicy policy{.window = 6, .topk = 0, .sinks = 3, .edge = WindowEdge::kToken};
  const TestLayer layer = test::random_layer(problem, policy, 6);
  const PositionEncoding rope = encoding_of(PositionKind::kRope);
  const partition::SequenceGrid grid(problem, policy);
  const partition::Layout layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
  LayerShard shard = layer.shard(layout, RankId(0));
  make_sink_queries(rope, problem, grid, tokens_up_to(60), shard, 1);
  std::vector<std::int64_t> positions;
  for (std::int64_t token = 0; token < 60; ++token) {
    positions.push_back(std::min<std::int64_t>(token < 20 ? token : token - 20, 3 + 6 - 1));
  }
  std::vector<std::byte> want(layer.q.size());
  kernels::rotate(rope, kernels::Side::kQuery, shard.queries(), positions, want, 1);
  EXPECT_EQ(shard.sink_q(), want);
}

// Public bug 22: shard-local positions, or ids that are read as offsets.
TEST(LayerPositions, a_layer_is_the_same_wherever_it_begins_and_on_any_ranks) {
  AttentionProblem problem = problem_of(512, 16);
  problem.landmark_slots = true;
  const AttentionPolicy policy{.window = 32, .topk = 4};
  const TestLayer layer = test::random_layer(problem, policy, 2);
  for (const PositionKind kind : {PositionKind::kRope, PositionKind::kHope}) {
    const test::GatheredResult at_zero = run(placed(layer, encoding_of(kind), 0), 1);
    for (const std::int64_t base : {1'000'000, 16'000'000}) {
      const test::GatheredResult there = run(placed(layer, encoding_of(kind), base), 4);
      EXPECT_EQ(there.digest, at_zero.digest) << name_of(kind) << " from " << base;
      double largest = 0.0;
      for (std::size_t i = 0; i < there.out.size(); ++i) {
        largest = std::max(largest, std::fabs(double{there.out[i]} - double{at_zero.out[i]}));
      }
      EXPECT_LT(largest, 3e-5) << name_of(kind) << " from " << base;
    }
  }
}

// Public bug 26: in fp16, angles of positions from 262144 on had no digits left.
TEST(LayerPositions, a_needle_is_found_at_400_thousand_in_fp16) {
  AttentionProblem problem = problem_of(640, 16, DType::kFloat16);
  problem.heads = problem.kv_heads = 1;
  const AttentionPolicy policy{.window = 16, .topk = 2, .scorer = Scorer::kOracle};
  TestLayer layer = test::random_layer(problem, policy, 3);
  const PositionEncoding rope = encoding_of(PositionKind::kRope);
  // Asked by token 600: its key points where the query points once both are rotated.
  constexpr std::int64_t kAsking = 600;
  constexpr std::int64_t kNeedle = 100;
  std::vector<float> question(64);
  widen(layer.q.data() + kAsking * 64 * 2, DType::kFloat16, 64, question.data());
  std::vector<float> key(64);
  kernels::rotate(rope, kernels::Side::kKey,
                  {reinterpret_cast<const std::byte*>(question.data()), DType::kFloat32, 1, 1, 64},
                  std::vector<std::int64_t>{kAsking - kNeedle}, std::as_writable_bytes(std::span(key)), 1);
  for (float& component : key) component *= 4.0f;
  narrow(key.data(), DType::kFloat16, 64, layer.k.data() + kNeedle * 64 * 2);
  for (const std::int64_t base : {0, 400'000}) {
    const test::GatheredResult result = run(placed(layer, rope, base), 2);
    const auto* const chosen = result.chunks.data() + kAsking * policy.topk;
    EXPECT_TRUE(chosen[0] == kNeedle / 16 || chosen[1] == kNeedle / 16) << chosen[0] << " and " << chosen[1];
    EXPECT_GT(result.lse[kAsking], 25.0f);  // 4 |q|^2 / 8, about 32
  }
}

}  // namespace
}  // namespace ringmark::runtime
