#include "tests/runtime/pooled_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <sstream>

#include "comm/thread_ranks.h"
#include "runtime/dense/prefill.h"
#include "tests/support/pick.h"

namespace ringmark::test {

namespace {

// out and lse of rows [begin, end) as one list.
std::vector<float> rows_of(const GatheredResult& result, const AttentionProblem& problem, std::int64_t begin,
                           std::int64_t end) {
  const std::int64_t width = problem.heads * problem.head_dim;
  std::vector<float> rows(result.out.begin() + begin * width, result.out.begin() + end * width);
  rows.insert(rows.end(), result.lse.begin() + begin * problem.heads, result.lse.begin() + end * problem.heads);
  return rows;
}

}  // namespace

std::vector<PooledRoute> pooled_routes(std::int64_t needed) {
  using partition::Balance;
  constexpr std::int64_t kPlenty = std::int64_t{64} << 20;
  return {
      {1, Balance::kContiguous, {.fetch_budget = kPlenty, .tile_rows = 4096, .threads = 1}},
      {1, Balance::kContiguous, {.fetch_budget = kPlenty, .tile_rows = 37, .threads = 3}},
      {2, Balance::kContiguous, {.fetch_budget = kPlenty, .tile_rows = 4096, .threads = 1}},
      {2, Balance::kZigzag, {.fetch_budget = needed, .tile_rows = 16, .threads = 2}},
      {3, Balance::kZigzag, {.fetch_budget = kPlenty, .tile_rows = 4096, .threads = 1}},
      {3, Balance::kRotate, {.fetch_budget = 2 * needed, .tile_rows = 50, .threads = 1}},
      {4, Balance::kZigzag, {.fetch_budget = needed, .tile_rows = 4096, .threads = 1}},
      {5, Balance::kContiguous, {.fetch_budget = kPlenty, .tile_rows = 7, .threads = 1}},
      {5, Balance::kZigzag, {.fetch_budget = needed, .tile_rows = 4096, .threads = 1}},
  };
}

std::string describe(const PooledRoute& route) {
  std::ostringstream text;
  text << route.ranks << " ranks, " << partition::name_of(route.balance) << ", budget " << route.options.fetch_budget
       << ", tiles of " << route.options.tile_rows << ", " << route.options.threads << " threads";
  return text.str();
}

GatheredResult run_pooled(const TestLayer& layer, const PooledRoute& route, const PooledEngine& engine) {
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, route.ranks, route.balance);
  GatheredResult first;
  std::mutex lock;
  comm::run_thread_ranks(route.ranks, [&](comm::Communicator& communicator) {
    const auto chosen = comm::choose_transport(communicator, comm::TransportChoice::kAuto);
    runtime::LayerShard shard = layer.shard(layout, RankId(communicator.rank()));
    const auto result = engine(communicator, *chosen.transport, layout, shard, route.options);
    GatheredResult gathered = gather_result(communicator, layer.problem, layout, result);
    const std::scoped_lock hold(lock);
    if (first.out.empty()) first = std::move(gathered);
  });
  return first;
}

GatheredResult run_on_all_routes(const TestLayer& layer, std::int64_t needed, const PooledEngine& engine) {
  GatheredResult first;
  for (const PooledRoute& route : pooled_routes(needed)) {
    GatheredResult result = run_pooled(layer, route, engine);
    if (first.out.empty()) first = result;
    EXPECT_EQ(result.out, first.out) << describe(layer) << " " << describe(route);
    EXPECT_EQ(result.lse, first.lse) << describe(layer) << " " << describe(route);
    EXPECT_EQ(result.chunks, first.chunks) << describe(layer) << " " << describe(route);
    EXPECT_EQ(result.digest, first.digest) << describe(layer) << " " << describe(route);
  }
  return first;
}

AttentionProblem random_pooled_problem(std::mt19937_64& random) {
  AttentionProblem problem;
  problem.chunk_size = pick<std::int64_t>(random, {1, 4, 12, 16, 32});
  problem.tokens = problem.chunk_size == 1 ? pick<std::int64_t>(random, {1, 7, 60})
                                           : pick<std::int64_t>(random, {1, 2, 15, 16, 17, 96, 129, 200, 233});
  problem.kv_heads = pick<std::int64_t>(random, {1, 2, 3});
  problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 4});
  problem.head_dim = pick<std::int64_t>(random, {32, 64, 80, 96, 128, 256});
  problem.dtype = pick(random, {DType::kBfloat16, DType::kFloat16, DType::kFloat32});
  problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  problem.landmark_slots = problem.chunk_size > 1 && random() % 2 == 0;
  if (random() % 4 == 0) problem.logit_cap = 0.7f;
  if (random() % 2 == 0) {  // documents, an empty one among them
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(problem.tokens));
    problem.cu_seqlens = {0, cut, cut, (cut + problem.tokens) / 2, problem.tokens};
  }
  problem.validate();
  return problem;
}

AttentionProblem packed_problem() {
  std::mt19937_64 random(8);
  AttentionProblem problem = random_pooled_problem(random);
  problem.tokens = 150;
  problem.chunk_size = 16;
  problem.cu_seqlens = {0, 5, 6, 70, 70, 150};
  return problem;
}

void expect_bits_of_single_runs(const GatheredResult& whole, const AttentionProblem& problem,
                                const std::function<GatheredResult(std::int64_t begin, std::int64_t end)>& alone) {
  for (std::size_t d = 0; d + 1 < problem.cu_seqlens.size(); ++d) {
    const std::int64_t begin = problem.cu_seqlens[d], end = problem.cu_seqlens[d + 1];
    if (begin == end) continue;
    EXPECT_EQ(rows_of(alone(begin, end), problem, 0, end - begin), rows_of(whole, problem, begin, end))
        << "document " << d;
  }
}

void expect_dense_attention(const GatheredResult& result, const TestLayer& layer) {
  TestLayer dense = layer;
  dense.policy = runtime::dense::whole_window(layer.problem);
  const auto reference = run_reference(dense);
  EXPECT_LE(max_difference(result.out, reference.out), 1e-5);
  EXPECT_LE(max_difference(result.lse, reference.lse), 1e-5);
}

}  // namespace ringmark::test
