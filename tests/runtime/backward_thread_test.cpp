// The backward pass with ranks as threads.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <regex>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "runtime/backward.h"
#include "runtime/dense/prefill.h"
#include "tests/runtime/backward_checks.h"

namespace ringmark::test {
namespace {

constexpr auto kAuto = comm::TransportChoice::kAuto;

void check_layer(const TestLayer& layer, std::uint64_t seed, std::initializer_list<int> counts) {
  layer.problem.validate();
  layer.policy.validate(layer.problem);
  const std::vector<float> out_gradient = random_out_gradient(layer.problem, seed);
  const LayerGradients alone = run_backward_alone(layer, out_gradient);
  const auto want = reference_gradients(layer, alone.selection, out_gradient);
  for (const int ranks : counts) {
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      check_backward(communicator, layer, out_gradient, want, alone, kAuto);
    });
  }
}

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, std::int64_t heads, std::int64_t kv_heads,
                            std::int64_t head_dim) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  problem.dtype = DType::kFloat32;
  return problem;
}

class Picker {
 public:
  explicit Picker(std::uint64_t seed) : random_(seed) {}
  template <class T>
  T operator()(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

 private:
  std::mt19937_64 random_;
};

AttentionProblem random_problem(Picker& pick) {
  const auto chunk_size = pick({std::int64_t{1}, std::int64_t{16}, std::int64_t{16}, std::int64_t{64}});
  const auto kv_heads = pick({std::int64_t{1}, std::int64_t{2}, std::int64_t{3}});
  AttentionProblem problem = problem_of(pick({1, 3, 16, 63, 64, 129, 200, 257}), chunk_size,
                                        kv_heads * pick({1, 1, 2, 4}), kv_heads, pick({32, 64, 80, 96, 128, 256}));
  if (chunk_size == 1 || problem.head_dim > 96) problem.tokens = std::min<std::int64_t>(problem.tokens, 66);
  problem.dtype = pick({DType::kFloat32, DType::kBfloat16, DType::kFloat16});
  problem.scale *= pick({1.0f, 1.0f, 0.05f, 4.0f});
  problem.landmark_slots = chunk_size > 1 && pick({true, false});
  if (pick({true, false, false})) {  // an empty document among them
    problem.cu_seqlens = {0, problem.tokens / 3, problem.tokens / 3, problem.tokens / 2, problem.tokens};
  }
  return problem;
}

TEST(BackwardOnThreads, worked_by_hand) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    comm::run_thread_ranks(ranks,
                           [](comm::Communicator& communicator) { check_gradient_examples(communicator, kAuto); });
  }
}

TEST(BackwardOnThreads, random_layers_match_the_reference) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Picker pick(seed);
    const AttentionProblem problem = random_problem(pick);
    const AttentionPolicy policy{pick({std::int64_t{0}, std::int64_t{1}, problem.chunk_size, std::int64_t{40}}),
                                 pick({std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{1000}}),
                                 pick({std::int64_t{0}, std::int64_t{0}, std::int64_t{1}, std::int64_t{18}}),
                                 pick({Scorer::kHils, Scorer::kHils, Scorer::kMean, Scorer::kNone})};
    check_layer(random_layer(problem, policy, seed), seed, {1, 2 + static_cast<int>(seed % 4)});
  }
}

TEST(BackwardOnThreads, dense_layers_match_the_reference) {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    Picker pick(seed);
    const AttentionProblem problem = random_problem(pick);
    check_layer(random_layer(problem, runtime::dense::whole_window(problem), seed), seed,
                {1, 2 + static_cast<int>(seed % 4)});
  }
}

TEST(BackwardOnThreads, packed_documents_on_any_ranks) { check_layer(packed_layer(), 5, {1, 2, 3, 4, 5, 9}); }

// bugs.md 12, 14: lengths that divide by nothing, fewer tokens than ranks.
TEST(BackwardOnThreads, awkward_lengths) {
  for (const std::int64_t tokens : {1, 2, 15, 16, 17, 33}) {
    AttentionProblem problem = problem_of(tokens, 16, 2, 1, 32);
    problem.landmark_slots = true;
    check_layer(random_layer(problem, {0, 2, 0, Scorer::kHils}, 7), 8, {1, 4, 5});
  }
}

// bugs.md 43: head maps that nothing divides, and groups of more heads than lanes.
TEST(BackwardOnThreads, grouped_heads) {
  for (const auto& [heads, kv_heads] : {std::pair{28, 7}, {40, 1}, {10, 5}}) {
    check_layer(random_layer(problem_of(70, 16, heads, kv_heads, 32), {16, 2, 0, Scorer::kHils}, 3), 4, {3});
  }
}

// math.md section 6: queries that choose one chunk all together are the normal case, and once gave gradients of 1e11.
TEST(BackwardOnThreads, every_query_chooses_the_same_chunk) {
  TestLayer layer = random_layer(problem_of(400, 16, 4, 2, 32), {0, 1, 0, Scorer::kHils}, 21);
  // Retrieval queries that all point one way, and one chunk whose keys lie there.
  std::vector<float> retrieval(layer.retrieval_q.size() / sizeof(float));
  for (std::size_t i = 0; i < retrieval.size(); ++i) retrieval[i] = i % 32 == 0 ? 2.0f : 0.0f;
  std::memcpy(layer.retrieval_q.data(), retrieval.data(), layer.retrieval_q.size());
  for (std::int64_t j = 16; j < 32; ++j) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const float along = 30.0f;
      std::memcpy(layer.k.data() + (j * 2 + head) * 32 * 4, &along, sizeof along);
    }
  }
  const LayerGradients alone = run_backward_alone(layer, random_out_gradient(layer.problem, 22));
  for (std::int64_t row = 32; row < 400; ++row) ASSERT_EQ(alone.selection.slots(row, 1)[0], 1) << "row " << row;
  check_layer(layer, 22, {1, 2, 4, 5});
}

// Rows of the first chunks choose none or fewer than K; a K of 0 chooses none at all.
TEST(BackwardOnThreads, fewer_chunks_than_slots) {
  for (const std::int64_t topk : {0, 1, 5, 100}) {
    check_layer(random_layer(problem_of(150, 16, 2, 1, 32), {16, topk, 0, Scorer::kHils}, 31), 32, {1, 3});
  }
}

// Weights of a row add up to 1, so the gradients of the values add up to those of the outputs.
TEST(BackwardOnThreads, value_gradients_add_up_to_the_out_gradients) {
  const TestLayer layer = random_layer(problem_of(2000, 32, 4, 2, 64), {64, 8, 0, Scorer::kHils}, 41);
  const std::vector<float> out_gradient = random_out_gradient(layer.problem, 42);
  comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
    const LayerGradients got = run_backward(communicator, layer, out_gradient, {});
    for (std::int64_t kv_head = 0; kv_head < 2; ++kv_head) {
      double values = 0.0;
      double outs = 0.0;
      for (std::int64_t row = 0; row < 2000; ++row) {
        for (std::int64_t x = 0; x < 64; ++x) {
          values += got.v[static_cast<std::size_t>((row * 2 + kv_head) * 64 + x)];
          for (std::int64_t h = 0; h < 2; ++h) {
            outs += out_gradient[static_cast<std::size_t>((row * 4 + kv_head * 2 + h) * 64 + x)];
          }
        }
      }
      EXPECT_NEAR(values, outs, 1e-2);
    }
  });
}

TEST(BackwardOnThreads, no_out_gradient_gives_none) {
  const TestLayer layer = packed_layer();
  const std::vector<float> zeros(random_out_gradient(layer.problem, 1).size(), 0.0f);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const LayerGradients got = run_backward(communicator, layer, zeros, {});
    for (const auto* tensor : {&got.q, &got.retrieval_q, &got.k, &got.v}) {
      EXPECT_EQ(*tensor, std::vector<float>(tensor->size(), 0.0f));
    }
  });
}

TEST(BackwardOnThreads, same_bits_on_the_baseline_instruction_set) {
  const TestLayer layer = packed_layer();
  const std::vector<float> out_gradient = random_out_gradient(layer.problem, 51);
  const LayerGradients native = run_backward_alone(layer, out_gradient);
  const kernels::cpu::Isa before = kernels::cpu::active_isa();
  kernels::cpu::force_isa(kernels::cpu::Isa::kAvx2);
  const LayerGradients baseline = run_backward_alone(layer, out_gradient);
  kernels::cpu::force_isa(before);
  EXPECT_EQ(native.q, baseline.q);
  EXPECT_EQ(native.retrieval_q, baseline.retrieval_q);
  EXPECT_EQ(native.k, baseline.k);
  EXPECT_EQ(native.v, baseline.v);
}

// What must move, counted from the layer: every block that rows of another rank read, once there and once, with its
// gradients, back.
TEST(BackwardOnThreads, every_block_moves_once) {
  AttentionProblem problem = problem_of(96, 16, 2, 1, 32);
  const TestLayer layer = random_layer(problem, runtime::dense::whole_window(problem), 61);
  const std::vector<float> out_gradient = random_out_gradient(problem, 62);
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const LayerGradients got =
        run_backward(communicator, layer, out_gradient, {partition::Balance::kContiguous, kAuto});
    // Chunks 0, 1, 2 are rank 0's and rank 1 reads them all; nobody reads rank 1's.
    EXPECT_EQ(got.bytes_fetched, 3 * 2 * 16 * 32 * 4);
    EXPECT_EQ(got.bytes_gradients, 3 * 2 * 16 * 32 * 4 + 2 * 3);  // and marks for the chunks of each
    EXPECT_EQ(got.stretches, 1);
  });
  comm::run_thread_ranks(2, [&](comm::Communicator& communicator) {
    const BackwardRoute small{partition::Balance::kZigzag, kAuto, std::int64_t{64} << 20, 1};
    EXPECT_EQ(run_backward(communicator, layer, out_gradient, small).stretches, 6);
  });
}

TEST(BackwardOnThreads, a_rank_that_leaves_is_named) {
  const TestLayer layer = packed_layer();
  const std::vector<float> out_gradient = random_out_gradient(layer.problem, 71);
  const auto layout =
      partition::make_layout(partition::SequenceGrid(layer.problem, layer.policy), 4, partition::Balance::kZigzag);
  try {
    comm::run_thread_ranks(
        4,
        [&](comm::Communicator& communicator) {
          const runtime::PrefillResult forward = run_forward(communicator, layer, layout, {});
          if (communicator.rank() != 2) run_backward(communicator, layer, layout, {}, forward, out_gradient);
        },
        std::chrono::milliseconds(500));
    ADD_FAILURE() << "went on without rank 2";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    const std::regex names_rank_2("rank [013]: stage '.*': waited .* s for ranks? (\\d, )*2.*");
    EXPECT_TRUE(std::regex_match(error.what(), names_rank_2)) << error.what();
  }
}

TEST(BackwardOnThreads, what_has_no_backward_pass_is_refused) {
  const AttentionProblem problem = problem_of(64, 16, 2, 1, 32);
  const AttentionPolicy policy{16, 2, 0, Scorer::kHils};
  const auto refusal = [](const AttentionProblem& of, const AttentionPolicy& by) {
    try {
      runtime::check_backward(of, by);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(problem, policy), "");
  const auto with_policy = [&](auto change) {
    AttentionPolicy changed = policy;
    change(changed);
    return refusal(problem, changed);
  };
  EXPECT_EQ(with_policy([](auto& p) { p.scorer = Scorer::kOracle; }), "scorer oracle has no backward pass");
  EXPECT_EQ(with_policy([](auto& p) { p.scorer = Scorer::kQuest; }), "scorer quest has no backward pass");
  EXPECT_EQ(with_policy([](auto& p) { p.choice = Choice::kHead; }), "choice head has no backward pass");
  EXPECT_EQ(with_policy([](auto& p) { p.fusion = Fusion::kUnion; }), "fusion union has no backward pass");
  EXPECT_EQ(with_policy([](auto& p) { p.edge = WindowEdge::kToken; }), "a window with edge token has no backward pass");
  const auto with_problem = [&](auto change) {
    AttentionProblem changed = problem;
    change(changed);
    return refusal(changed, policy);
  };
  EXPECT_EQ(with_problem([](auto& p) { p.logit_cap = 5.0f; }), "logit_cap = 5.000000 has no backward pass");
  EXPECT_EQ(with_problem([](auto& p) { p.alibi = true; }), "alibi has no backward pass");
  EXPECT_EQ(with_problem([](auto& p) { p.sink_logits = {0.0f, 0.0f}; }), "sink_logits has no backward pass");
}

}  // namespace
}  // namespace ringmark::test
