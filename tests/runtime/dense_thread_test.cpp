// Dense attention with ranks as threads.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <random>
#include <regex>
#include <thread>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "runtime/meeting.h"
#include "tests/runtime/dense_checks.h"

namespace ringmark::test {
namespace {

using runtime::dense::Strategy;

template <class Check>
void for_all_routes(std::initializer_list<int> counts, Check check) {
  for (const int ranks : counts) {
    for (const DenseRoute& route : dense_routes(ranks)) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) { check(communicator, route); });
    }
  }
}

DenseResult run_alone(const TestLayer& layer) {
  const auto alone = comm::make_single_rank();
  return run_dense(*alone, layer, {});
}

void check_layer(const AttentionProblem& problem, std::uint64_t seed, std::initializer_list<int> counts) {
  const TestLayer layer = dense_layer(problem, seed);
  const auto reference = run_reference(layer);
  const DenseResult alone = run_alone(layer);
  for_all_routes(counts, [&](comm::Communicator& communicator, const DenseRoute& route) {
    check_dense(communicator, layer, reference, alone, route);
  });
}

TEST(DenseOnThreads, worked_by_hand) {
  for_all_routes({1, 2, 3, 4, 5}, [](comm::Communicator& communicator, const DenseRoute& route) {
    check_running_means(communicator, route);
    check_weight_of_ln_3(communicator, route);
    check_two_documents(communicator, route);
    check_extreme_scores(communicator, route);
  });
}

TEST(DenseOnThreads, random_layers_match_the_reference) {
  std::mt19937_64 random(1);
  const auto pick = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    AttentionProblem problem;
    problem.tokens = pick({1, 3, 64, 129, 200, 257, 320});
    problem.chunk_size = pick({1, 16, 64});
    if (problem.chunk_size == 1) problem.tokens = std::min<std::int64_t>(problem.tokens, 64);
    problem.kv_heads = pick({1, 2, 3});
    problem.heads = problem.kv_heads * pick({1, 2, 4});
    problem.head_dim = pick({32, 80, 96, 128, 256});
    problem.scale = static_cast<float>(pick({1, 1, 6})) / std::sqrt(static_cast<float>(problem.head_dim));
    problem.landmark_slots = problem.chunk_size > 1 && seed % 2 == 0;
    problem.dtype = std::array{DType::kBfloat16, DType::kFloat16, DType::kFloat32}[seed % 3];
    if (seed % 3 == 0) {  // an empty document among them
      problem.cu_seqlens = {0, problem.tokens / 3, problem.tokens / 3, problem.tokens / 2, problem.tokens};
    }
    check_layer(problem, seed, {1, 2, 3, 4, 5});
  }
}

// Heads that a rank attends for keep their slopes, whatever their number is there.
TEST(DenseOnThreads, caps_biases_and_sinks) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {10, 5}, {3, 1}}) {
    AttentionProblem problem;
    problem.tokens = 130;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.head_dim = 32;
    problem.chunk_size = 16;
    problem.landmark_slots = heads == 10;
    problem.cu_seqlens = {0, 40, problem.tokens};
    problem.logit_cap = heads == 3 ? 0.0f : 1.5f;
    problem.alibi = true;
    for (int head = 0; head < heads; ++head) problem.sink_logits.push_back(static_cast<float>(head % 4) - 1.0f);
    check_layer(problem, 11, {1, 2, 3, 4, 5});
  }
}

// bugs.md 43: head maps that nothing divides.
TEST(DenseOnThreads, heads_that_do_not_divide) {
  for (const auto& [heads, kv_heads] : {std::pair{28, 7}, {8, 1}, {10, 5}, {1, 1}}) {
    AttentionProblem problem;
    problem.tokens = 100;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.head_dim = 32;
    problem.chunk_size = 16;
    check_layer(problem, 5, {3, 5, 6});
  }
}

// bugs.md 12, 14, 4: lengths that divide by nothing, fewer chunks than ranks.
TEST(DenseOnThreads, awkward_lengths) {
  for (const std::int64_t tokens : {1, 2, 63, 65, 511}) {
    AttentionProblem problem;
    problem.tokens = tokens;
    problem.heads = 2;
    problem.head_dim = 32;
    check_layer(problem, 7, {4, 8});
  }
}

// Against counts of tokens, and against the closed forms. One document of 2P segments of four chunks.
TEST(DenseOnThreads, receives_the_bytes_that_the_formulas_say) {
  for (const int ranks : {2, 3, 4}) {
    AttentionProblem problem;
    problem.tokens = 2 * ranks * 4 * 16;
    problem.heads = 12;
    problem.kv_heads = 12;
    problem.head_dim = 32;
    problem.chunk_size = 16;
    const TestLayer layer = dense_layer(problem, 9);
    const std::int64_t all = problem.tokens * 2 * problem.kv_heads * problem.head_dim * 2;  // K and V in bf16
    const std::int64_t queries = all / 2;
    const std::int64_t partials = problem.tokens * problem.heads * (problem.head_dim + 1) * 4;
    for (const DenseRoute& route : dense_routes(ranks)) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        check_received_bytes(communicator, layer, route);
        const auto own = run_dense(communicator, layer, route).received;
        std::array<std::int64_t, 3> sums = {own.keys, own.queries, own.partials};
        communicator.all_reduce_sum("sum bytes", sums);
        const std::string what = describe(route, ranks);
        if (route.strategy == Strategy::kUlysses) {
          EXPECT_EQ(own.keys, all / ranks * (ranks - 1) / ranks) << what;
          EXPECT_EQ(own.queries, queries / ranks * (ranks - 1) / ranks) << what;
          EXPECT_EQ(own.partials, partials / ranks * (ranks - 1) / ranks) << what;
        } else if (route.strategy != Strategy::kPassQ && route.ulysses_ranks == 1) {
          // (P - 1) / P of all a rank, less what causality saves: a half, a quarter, the last chunks.
          const std::int64_t whole = all * (ranks - 1);
          const bool contiguous = route.balance == partition::Balance::kContiguous;
          const bool zigzag = route.balance == partition::Balance::kZigzag;
          EXPECT_LE(sums[0], contiguous ? whole / 2 : zigzag ? whole * 3 / 4 : whole) << what;
          EXPECT_GE(sums[0], contiguous ? whole / 2 : zigzag ? whole * 3 / 4 : whole * 9 / 10) << what;
          EXPECT_EQ(sums[1] + sums[2], 0) << what;
        } else if (route.strategy == Strategy::kPassQ && route.balance == partition::Balance::kContiguous) {
          EXPECT_EQ(sums[1], queries * (ranks - 1) / 2) << what;
          EXPECT_EQ(sums[2], partials * (ranks - 1) / 2) << what;
        }
      });
    }
  }
}

// With more ranks than heads some have nothing to do, and cannot tell by their own work how long the others take.
TEST(DenseOnThreads, ranks_without_work_wait_for_the_others) {
  comm::run_thread_ranks(
      2,
      [](comm::Communicator& communicator) {
        const std::array<std::int64_t, 2> work = {0, std::int64_t{1} << 62};
        const runtime::Meeting meeting(communicator, work);
        std::this_thread::sleep_for(std::chrono::milliseconds(communicator.rank() == 0 ? 1 : 600));
        meeting.meet("after uneven work");
      },
      std::chrono::milliseconds(200));
}

TEST(DenseOnThreads, a_rank_that_leaves_is_named) {
  AttentionProblem problem;
  problem.tokens = 640;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  const TestLayer layer = dense_layer(problem, 3);
  for (const DenseRoute& route : dense_routes(4)) {
    try {
      comm::run_thread_ranks(
          4,
          [&](comm::Communicator& communicator) {
            if (communicator.rank() != 2) run_dense(communicator, layer, route);
          },
          std::chrono::milliseconds(500));
      ADD_FAILURE() << "went on without rank 2: " << describe(route, 4);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPeer);
      // Others may not have come yet when the first of all finds out.
      const std::regex names_rank_2("rank [013]: stage '.*': waited .* s for ranks? (\\d, )*2.*");
      EXPECT_TRUE(std::regex_match(error.what(), names_rank_2)) << error.what();
    }
  }
}

}  // namespace
}  // namespace ringmark::test
