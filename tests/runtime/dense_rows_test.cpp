// Dense attention of some rows, with ranks as threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "comm/thread_ranks.h"
#include "kvstore/block_store.h"
#include "tests/kernels/attention_case.h"
#include "tests/runtime/dense_checks.h"

namespace ringmark::test {
namespace {

using partition::Balance;
using runtime::dense::Strategy;

struct Rows {
  std::vector<TokenId> tokens;
  runtime::dense::Result result;
};

// `attends` by token. Queries in fp32 whatever the layer's type, with `as_fp32`.
Rows attend_rows(comm::Communicator& communicator, const TestLayer& layer, const std::vector<bool>& attends,
                 Strategy strategy, Balance balance, std::int64_t budget, bool as_fp32) {
  const AttentionProblem& problem = layer.problem;
  const partition::SequenceGrid grid(problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), balance);
  const RankId rank(communicator.rank());
  const runtime::LayerShard shard = layer.shard(layout, rank);
  const auto chunks = static_cast<std::int64_t>(layout.chunks_of(rank).size());
  std::vector<std::byte> arena(static_cast<std::size_t>(kvstore::BlockStore::bytes_of(problem, chunks)));
  kernels::BlockTable table(kernels::BlockShape::of(problem), grid.chunk_count(), problem.kv_heads);
  kvstore::BlockStore(problem, grid, layout, rank, shard.keys(), shard.values(), arena).list_in(table);

  Rows rows;
  const DType dtype = as_fp32 ? DType::kFloat32 : problem.dtype;
  const std::int64_t width = problem.heads * problem.head_dim;
  std::vector<std::byte> packed;
  std::vector<float> row(static_cast<std::size_t>(width));
  const std::vector<TokenId> all = layout.tokens_of(rank);
  for (std::size_t n = 0; n < all.size(); ++n) {
    if (!attends[static_cast<std::size_t>(all[n].value())]) continue;
    rows.tokens.push_back(all[n]);
    widen(shard.queries().row(static_cast<std::int64_t>(n), 0), problem.dtype, width, row.data());
    packed.resize(rows.tokens.size() * static_cast<std::size_t>(width * size_of(dtype)));
    narrow(row.data(), dtype, width, packed.data() + packed.size() - static_cast<std::size_t>(width * size_of(dtype)));
  }
  const RowsView queries{packed.data(), dtype, std::ssize(rows.tokens), problem.heads, problem.head_dim};
  runtime::SilentProgress progress;
  rows.result = runtime::dense::attend_rows(communicator, problem, grid, layout, queries, rows.tokens, table,
                                            {.strategy = strategy, .fetch_budget = budget}, progress);
  return rows;
}

// Rows against those of a dense prefill: close, and where chunks are walked in order, to the bit.
void check_rows(const Rows& rows, const AttentionProblem& problem, const DenseResult& whole, bool same_bits,
                const std::string& what) {
  const auto heads = static_cast<std::size_t>(problem.heads);
  const auto width = heads * static_cast<std::size_t>(problem.head_dim);
  ASSERT_EQ(rows.result.out.size(), rows.tokens.size() * width);
  const auto check = [&](const std::vector<float>& got, const std::vector<float>& want, std::size_t elements) {
    for (std::size_t n = 0; n < rows.tokens.size(); ++n) {
      for (std::size_t i = 0; i < elements; ++i) {
        const float have = got[n * elements + i];
        const float wanted = want[static_cast<std::size_t>(rows.tokens[n].value()) * elements + i];
        if (same_bits || std::isinf(wanted)) {
          ASSERT_EQ(have, wanted) << what;
        } else {
          ASSERT_NEAR(have, wanted, 1e-5f) << what;
        }
      }
    }
  };
  check(rows.result.out, whole.out, width);
  check(rows.result.lse, whole.lse, heads);
}

TEST(DenseRows, are_those_of_the_whole) {
  std::mt19937_64 random(21);
  for (int trial = 0; trial < 12; ++trial) {
    AttentionProblem problem = kernels::random_problem(random);
    const TestLayer layer = dense_layer(problem, random());
    const auto alone = comm::make_single_rank();
    const DenseResult whole = run_dense(*alone, layer, {});
    const auto share = kernels::pick<std::uint64_t>(random, {0, 1, 10, 50, 100});  // percent of the rows
    std::vector<bool> attends;
    for (std::int64_t token = 0; token < problem.tokens; ++token) attends.push_back(random() % 100 < share);
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const Strategy strategy : {Strategy::kRing, Strategy::kPassQ, Strategy::kAllGather}) {
        for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
          comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
            const Rows rows = attend_rows(communicator, layer, attends, strategy, balance, trial % 2 == 0 ? 1 : 1 << 26,
                                          trial % 3 == 0);
            check_rows(rows, problem, whole, ranks == 1 || strategy == Strategy::kAllGather,
                       describe(layer) + " " + std::string(name_of(strategy)));
          });
        }
      }
    }
  }
}

// 64 tokens on two ranks, half each. Of the second half 3 rows attend: pass-q moves their queries and results only.
TEST(DenseRows, pass_q_moves_no_other_rows) {
  AttentionProblem problem;
  problem.tokens = 64;
  problem.heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 8;
  const TestLayer layer = dense_layer(problem, 6);
  std::vector<bool> attends(64, false);
  for (const std::size_t token : {5u, 32u, 40u, 63u}) attends[token] = true;
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const Rows rows = attend_rows(communicator, layer, attends, Strategy::kPassQ, Balance::kContiguous, 1 << 26, false);
    const bool first = communicator.rank() == 0;
    EXPECT_EQ(rows.result.received.keys, 0);
    EXPECT_EQ(rows.result.received.queries, first ? 3 * 2 * 32 * 2 : 0);
    EXPECT_EQ(rows.result.received.partials, first ? 0 : 3 * 2 * 33 * 4);
  });
}

}  // namespace
}  // namespace ringmark::test
