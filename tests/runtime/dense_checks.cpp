#include "tests/runtime/dense_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "partition/sequence_grid.h"
#include "tests/support/gather_rows.h"

namespace ringmark::test {
namespace {

using partition::Balance;
using runtime::dense::Strategy;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One head of one component in chunks of one token, so that three ranks share three tokens.
TestLayer tiny_layer(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                     const std::vector<std::int64_t>& cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = static_cast<std::int64_t>(q.size());
  problem.head_dim = 1;
  problem.chunk_size = 1;
  problem.dtype = DType::kFloat32;
  problem.scale = 1.0f;
  problem.cu_seqlens = cu_seqlens;
  return {problem, runtime::dense::whole_window(problem), stored(q), {}, stored(k), stored(v)};
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // equal infinities too
    EXPECT_NEAR(got[i], want[i], 1e-5f) << what << " at " << i;
  }
}

struct Counts {
  std::int64_t key_chunks = 0;   // other ranks' chunks with keys for this rank
  std::int64_t visitors = 0;     // other ranks' rows that this rank has keys for
  std::int64_t rows_abroad = 0;  // (own row, other rank with keys for it)
};

// From the tokens alone.
Counts count_needs(const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank) {
  Counts counts;
  std::set<std::int64_t> key_chunks, visitors;
  std::set<std::pair<std::int64_t, std::int64_t>> abroad;
  for (TokenId row(0); row < TokenId(grid.tokens()); ++row) {
    const RankId at = layout.owner(grid.chunk_of(row));
    const Range<TokenId> seen = grid.window_of(row);
    for (ChunkId chunk = grid.chunk_of(seen.begin); chunk <= grid.chunk_of(row); ++chunk) {
      const RankId owner = layout.owner(chunk);
      if (owner == at) continue;
      if (at == rank) key_chunks.insert(chunk.value());
      if (at == rank) abroad.insert({row.value(), owner.value()});
      if (owner == rank) visitors.insert(row.value());
    }
  }
  counts.key_chunks = static_cast<std::int64_t>(key_chunks.size());
  counts.visitors = static_cast<std::int64_t>(visitors.size());
  counts.rows_abroad = static_cast<std::int64_t>(abroad.size());
  return counts;
}

}  // namespace

std::string describe(const DenseRoute& route, int ranks) {
  std::ostringstream text;
  text << name_of(route.strategy) << " " << name_of(route.balance) << " on " << ranks << " ranks, groups of "
       << route.ulysses_ranks << ", budget " << route.fetch_budget;
  return text.str();
}

std::vector<DenseRoute> dense_routes(int ranks) {
  std::vector<DenseRoute> routes;
  for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
    routes.push_back({Strategy::kRing, 1, balance});
    routes.push_back({Strategy::kPassQ, 1, balance});
    routes.push_back({Strategy::kAllGather, 1, balance});
    routes.push_back({Strategy::kAllGather, 1, balance, 1});
    routes.push_back({Strategy::kUlysses, ranks, balance});
    for (int group = 2; group < ranks; ++group) {
      if (ranks % group == 0) routes.push_back({Strategy::kRingUlysses, group, balance});
    }
  }
  return routes;
}

DenseResult run_dense(comm::Communicator& communicator, const TestLayer& layer, const DenseRoute& route) {
  const AttentionProblem& problem = layer.problem;
  const partition::SequenceGrid grid(problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), route.balance);
  runtime::LayerShard shard = layer.shard(layout, RankId(communicator.rank()));
  runtime::SilentProgress progress;
  const auto result = runtime::dense::prefill(
      communicator, problem, grid, layout, shard,
      {.strategy = route.strategy, .ulysses_ranks = route.ulysses_ranks, .fetch_budget = route.fetch_budget}, progress);
  return {gather(communicator, layout, problem.tokens, problem.heads * problem.head_dim, result.out),
          gather(communicator, layout, problem.tokens, problem.heads, result.lse), result.received};
}

TestLayer dense_layer(AttentionProblem problem, std::uint64_t seed) {
  problem.validate();
  return random_layer(problem, runtime::dense::whole_window(problem), seed);
}

void check_dense(comm::Communicator& communicator, const TestLayer& layer, const kernels::reference::Result& reference,
                 const DenseResult& alone, const DenseRoute& route) {
  const DenseResult result = run_dense(communicator, layer, route);
  const std::string what = describe(layer) + ": " + describe(route, communicator.size());
  const double heat = std::max(1.0, layer.problem.scale * std::sqrt(static_cast<double>(layer.problem.head_dim)));
  EXPECT_LE(max_difference(result.out, reference.out), 1e-5 * heat) << what;
  EXPECT_LE(max_difference(result.lse, reference.lse), 1e-5 * heat) << what;
  if (route.strategy == Strategy::kAllGather || route.strategy == Strategy::kUlysses) {
    EXPECT_EQ(result.out, alone.out) << what;
    EXPECT_EQ(result.lse, alone.lse) << what;
  }
  const DenseResult again = run_dense(communicator, layer, route);
  EXPECT_EQ(result.out, again.out) << what << ": another run";
}

void check_received_bytes(comm::Communicator& communicator, const TestLayer& layer, const DenseRoute& route) {
  const AttentionProblem& p = layer.problem;
  const partition::SequenceGrid grid(p, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), route.balance);
  const auto received = run_dense(communicator, layer, route).received;
  const Counts counts = count_needs(grid, layout, RankId(communicator.rank()));
  const std::int64_t chunk_bytes = p.kv_heads * kernels::BlockShape::of(p).bytes();
  const std::int64_t query_bytes = p.heads * p.head_dim * size_of(p.dtype);
  const std::int64_t partial_bytes = p.heads * (p.head_dim + 1) * 4;
  const std::string what = describe(layer) + ": " + describe(route, communicator.size());
  switch (route.strategy) {
    case Strategy::kAllGather: EXPECT_EQ(received.keys, counts.key_chunks * chunk_bytes) << what; break;
    case Strategy::kPassQ:
      EXPECT_EQ(received.keys, 0) << what;
      EXPECT_EQ(received.queries, counts.visitors * query_bytes) << what;
      EXPECT_EQ(received.partials, counts.rows_abroad * partial_bytes) << what;
      break;
    case Strategy::kRing:  // what a rank needs, and what it passes on
      EXPECT_GE(received.keys, counts.key_chunks * chunk_bytes) << what;
      EXPECT_LE(received.keys,
                (grid.chunk_count() - static_cast<std::int64_t>(layout.chunks_of(RankId(communicator.rank())).size())) *
                    chunk_bytes)
          << what;
      break;
    default: break;
  }
}

void check_running_means(comm::Communicator& communicator, const DenseRoute& route) {
  const DenseResult result = run_dense(communicator, tiny_layer({0, 0, 0, 0}, {5, -7, 9, 1}, {2, 4, 6, 8}), route);
  const std::string what = describe(route, communicator.size());
  expect_near(result.out, {2, 3, 4, 5}, what);
  expect_near(result.lse, {0, std::log(2.0f), std::log(3.0f), std::log(4.0f)}, what);
}

void check_weight_of_ln_3(comm::Communicator& communicator, const DenseRoute& route) {
  const DenseResult result = run_dense(communicator, tiny_layer({1, 1}, {0, std::log(3.0f)}, {0, 4}), route);
  const std::string what = describe(route, communicator.size());
  expect_near(result.out, {0, 3}, what);
  expect_near(result.lse, {0, std::log(4.0f)}, what);
}

void check_two_documents(comm::Communicator& communicator, const DenseRoute& route) {
  const DenseResult result =
      run_dense(communicator, tiny_layer({0, 0, 0, 0}, {1, 1, 1, 1}, {1, 2, 3, 4}, {0, 2, 4}), route);
  const std::string what = describe(route, communicator.size());
  expect_near(result.out, {1, 1.5, 3, 3.5}, what);
  expect_near(result.lse, {0, std::log(2.0f), 0, std::log(2.0f)}, what);
}

void check_extreme_scores(comm::Communicator& communicator, const DenseRoute& route) {
  const std::string what = describe(route, communicator.size());
  const DenseResult hot =
      run_dense(communicator, tiny_layer({1, 1, 1, 1, 1}, {-80, 80, -80, 80, kMinusInfinity}, {9, 2, 9, 4, 9}), route);
  expect_near(hot.out, {9, 2, 2, 3, 3}, what);
  expect_near(hot.lse, {-80, 80, 80, 80 + std::log(2.0f), 80 + std::log(2.0f)}, what);
  const DenseResult blind =
      run_dense(communicator, tiny_layer({1, 1, 1}, {kMinusInfinity, kMinusInfinity, 0}, {5, 5, 7}), route);
  expect_near(blind.out, {0, 0, 7}, what);
  expect_near(blind.lse, {kMinusInfinity, kMinusInfinity, 0}, what);
}

}  // namespace ringmark::test
