// Prefill with ranks as threads, on the engine that is linked in.
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <set>

#include "comm/thread_ranks.h"
#include "tests/runtime/prefill_checks.h"
#include "tests/support/pick.h"

namespace ringmark::test {
namespace {

using comm::TransportChoice;

// Runs `check` on every rank of every route and rank count; all digests must be one.
template <class Check>
void for_all_rank_counts(std::initializer_list<int> counts, Check&& check) {
  std::set<std::uint64_t> digests;
  std::mutex lock;
  for (const int ranks : counts) {
    for (const Route& route : routes(TransportChoice::kAuto)) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const std::uint64_t digest = check(communicator, route);
        const std::scoped_lock hold(lock);
        digests.insert(digest);
      });
    }
  }
  EXPECT_EQ(digests.size(), 1u) << "the selection depends on the rank count, the layout or the merge";
}

class PrefillOnThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (!engine_under_test().available()) GTEST_SKIP() << "no GPU here";
  }
};
using PrefillOnThreadsFull = PrefillOnThreads;

TEST_F(PrefillOnThreads, golden_layer_on_any_ranks) {
  const GoldenLayer golden = load_golden(2048);
  for_all_rank_counts({1, 2, 3, 4, 7}, [&](auto& communicator, const Route& route) {
    const std::uint64_t digest = check_golden(communicator, golden, route);
    EXPECT_EQ(digest, kGoldenDigest2048);
    return digest;
  });
}

struct Shape {
  std::int64_t tokens, chunk_size, window, topk, heads, kv_heads, head_dim, sinks;
  bool slots, tied;
  DType dtype;
  Scorer scorer;
  std::vector<std::int64_t> cu_seqlens;
  float heat = 1.0f;  // times the usual scale
};

TestLayer layer_of(const Shape& s, std::uint64_t seed) {
  AttentionProblem problem;
  problem.tokens = s.tokens;
  problem.heads = s.heads;
  problem.kv_heads = s.kv_heads;
  problem.head_dim = s.head_dim;
  problem.chunk_size = s.chunk_size;
  problem.dtype = s.dtype;
  problem.scale = s.heat / std::sqrt(static_cast<float>(s.head_dim));
  problem.landmark_slots = s.slots;
  problem.cu_seqlens = s.cu_seqlens;
  problem.validate();
  const AttentionPolicy policy{s.window, s.topk, s.sinks, s.scorer};
  policy.validate(problem);
  return random_layer(problem, policy, seed, s.tied);
}

Shape random_shape(std::mt19937_64& random) {
  Shape s;
  s.tokens =
      pick<std::int64_t>(random, {1, 2, 3, 7, 63, 64, 65, 127, 128, 129, 191, 256, 320, 449, 512, 577, 640, 700});
  s.chunk_size = pick<std::int64_t>(random, {1, 16, 64});
  s.window = pick<std::int64_t>(random, {0, 1, s.chunk_size, 100});
  s.topk = pick<std::int64_t>(random, {0, 1, 8, 1000});
  s.kv_heads = pick<std::int64_t>(random, {1, 2});
  s.heads = s.kv_heads * pick<std::int64_t>(random, {1, 2, 4, 8});
  s.head_dim = pick<std::int64_t>(random, {32, 64, 80, 128, 256});
  s.sinks = pick<std::int64_t>(random, {0, 0, 1, 64, 70});
  s.slots = s.chunk_size > 1 && random() % 2 == 0;
  s.tied = random() % 3 == 0;
  s.dtype = pick(random, {DType::kBfloat16, DType::kFloat16, DType::kFloat32});
  s.scorer = pick(random, {Scorer::kHils, Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kNone});
  s.heat = pick(random, {1.0f, 1.0f, 8.0f, 0.01f});
  if (random() % 3 == 0) {  // documents, an empty one among them
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(s.tokens));
    s.cu_seqlens = {0, cut, cut, (cut + s.tokens) / 2, s.tokens};
  }
  return s;
}

// Shapes that tensor cores take, with more chunks to choose from.
void suit_tensor_cores(Shape& s, std::mt19937_64& random) {
  s.chunk_size = 64;
  s.head_dim = pick<std::int64_t>(random, {64, 128});
  s.topk = pick<std::int64_t>(random, {1, 4, 16, 64});
  s.kv_heads = pick<std::int64_t>(random, {1, 2});
  s.heads = s.kv_heads * pick<std::int64_t>(random, {1, 2, 4, 8, 16});
  s.tokens *= pick<std::int64_t>(random, {1, 1, 3});
  for (auto& start : s.cu_seqlens) start = std::min(start, s.tokens);
  if (!s.cu_seqlens.empty()) s.cu_seqlens.back() = s.tokens;
  if (s.dtype == DType::kFloat32) s.dtype = DType::kBfloat16;
  if (s.scorer == Scorer::kOracle) s.scorer = Scorer::kHils;
}

// S = 1 makes many chunks; keep the reference quick.
void keep_small(Shape& s) {
  if (s.chunk_size == 1) s.tokens = std::min<std::int64_t>(s.tokens, 130);
  if (s.head_dim >= 128 || s.heads > 4) s.tokens = std::min<std::int64_t>(s.tokens, 320);
  if (s.chunk_size == 1 || s.tokens <= 320) {
    for (auto& start : s.cu_seqlens) start = std::min(start, s.tokens);
    if (!s.cu_seqlens.empty()) s.cu_seqlens.back() = s.tokens;
  }
}

void check_random_layers(std::uint64_t first_seed, int count) {
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(count); ++seed) {
    std::mt19937_64 random(seed);
    Shape shape = random_shape(random);
    keep_small(shape);
    if (engine_under_test().wants_tensor_shapes() && seed % 4 != 0) suit_tensor_cores(shape, random);
    const TestLayer layer = layer_of(shape, seed);
    const auto reference = run_reference(layer);
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::set<std::uint64_t> digests;
    std::mutex lock;
    for (const Route& route : routes(TransportChoice::kAuto)) {
      for (const int count_of_ranks : {1, ranks}) {
        comm::run_thread_ranks(count_of_ranks, [&](comm::Communicator& communicator) {
          // A budget of a few rows: many waves, evictions.
          const std::int64_t budget = seed % 4 == 0 ? std::int64_t{64} << 20 : (1 + seed % 2) * needed_budget(layer);
          const auto digest = check_against_reference(communicator, layer, reference, route, budget);
          const std::scoped_lock hold(lock);
          digests.insert(digest);
        });
      }
    }
    EXPECT_EQ(digests.size(), 1u) << "seed " << seed << " " << describe(layer);
  }
}

TEST_F(PrefillOnThreads, random_layers_match_the_reference) { check_random_layers(1000, 120); }
TEST_F(PrefillOnThreadsFull, more_random_layers_match_the_reference) { check_random_layers(5000, 3000); }

// bugs.md 12, 14, 4: lengths that divide by nothing, fewer tokens than ranks, one block for many ranks.
TEST_F(PrefillOnThreads, awkward_lengths) {
  for (const std::int64_t tokens : {1, 2, 3, 63, 64, 65, 2 * 4 * 64 - 1, 2 * 4 * 64 + 1}) {
    const TestLayer layer =
        layer_of({tokens, 64, 64, 2, 4, 2, 32, 0, true, false, DType::kBfloat16, Scorer::kHils, {}}, 7);
    const auto reference = run_reference(layer);
    for_all_rank_counts({1, 4, 8}, [&](auto& communicator, const Route& route) {
      return check_against_reference(communicator, layer, reference, route);
    });
  }
}

// bugs.md 31, 37: K around the number of candidates.
TEST_F(PrefillOnThreads, more_slots_than_candidates) {
  for (const std::int64_t topk : {1, 8, 9, 10, 100}) {  // 9 candidates at the last row
    const TestLayer layer =
        layer_of({160, 16, 16, topk, 2, 1, 32, 0, false, false, DType::kFloat32, Scorer::kHils, {}}, 3);
    const auto reference = run_reference(layer);
    for_all_rank_counts({1, 3}, [&](auto& communicator, const Route& route) {
      return check_against_reference(communicator, layer, reference, route);
    });
  }
}

// bugs.md 43: head maps 28/7, 8/1, 40/8, 16/2 over ranks that divide nothing.
TEST_F(PrefillOnThreads, grouped_heads_on_any_ranks) {
  for (const auto& [heads, kv_heads] : {std::pair{28, 7}, {8, 1}, {40, 8}, {16, 2}}) {
    const TestLayer layer =
        layer_of({100, 16, 16, 2, heads, kv_heads, 32, 0, false, false, DType::kBfloat16, Scorer::kHils, {}}, 5);
    const auto reference = run_reference(layer);
    for_all_rank_counts({2, 3, 8}, [&](auto& communicator, const Route& route) {
      return check_against_reference(communicator, layer, reference, route);
    });
  }
}

TEST_F(PrefillOnThreads, probe_on_every_layout) {
  std::vector<Shape> shapes = {
      {200, 16, 16, 3, 2, 1, 32, 0, true, false, DType::kFloat32, Scorer::kHils, {}},
      {200, 16, 0, 1, 2, 1, 32, 3, false, false, DType::kFloat32, Scorer::kMean, {}},
      {130, 64, 100, 1000, 2, 1, 32, 0, false, false, DType::kBfloat16, Scorer::kHils, {}},
      {200, 16, 16, 3, 2, 1, 32, 0, true, false, DType::kFloat32, Scorer::kHils, {0, 72, 72, 110, 200}},
      {161, 16, 0, 4, 2, 1, 32, 20, false, false, DType::kFloat32, Scorer::kOracle, {0, 5, 31, 161}},
  };
  for (const Shape& shape : shapes) {
    const TestLayer layer = layer_of(shape, 11);
    const std::int64_t last = shape.tokens - 1;
    for (const std::int64_t token : {std::int64_t{0}, std::int64_t{15}, std::int64_t{50}, std::int64_t{72}, last}) {
      for (const int ranks : {1, 2, 4}) {
        for (const Route& route : routes(TransportChoice::kAuto)) {
          comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
            check_probe(communicator, layer, TokenId(token), route);
          });
        }
      }
    }
  }
}

// bugs.md 29: five documents packed give the bits of five runs.
TEST_F(PrefillOnThreads, packed_documents_equal_single_runs) {
  const std::vector<std::int64_t> starts = {0, 5, 6, 136, 136, 300};
  const TestLayer packed =
      layer_of({300, 16, 16, 3, 4, 2, 32, 2, true, false, DType::kBfloat16, Scorer::kHils, starts}, 21);
  for (const int ranks : {1, 4}) {
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
      const runtime::PrefillOptions options;
      const auto whole =
          run_prefill(communicator, TransportChoice::kAuto, packed, partition::Balance::kZigzag, options);
      for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
        if (starts[d] == starts[d + 1]) continue;
        const TestLayer single = slice(packed, starts[d], starts[d + 1]);
        const auto alone =
            run_prefill(communicator, TransportChoice::kAuto, single, partition::Balance::kContiguous, options);
        const std::int64_t width = packed.problem.heads * packed.problem.head_dim;
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), whole.out.begin() + starts[d] * width))
            << "document " << d;
      }
    });
  }
}

// bugs.md 6: the error does not grow with the ring, and the bits do not change with it.
TEST_F(PrefillOnThreads, bits_do_not_depend_on_the_rank_count) {
  const TestLayer layer =
      layer_of({640, 16, 32, 4, 4, 2, 64, 0, false, false, DType::kBfloat16, Scorer::kHils, {}}, 31);
  std::vector<float> first;
  std::mutex lock;
  for (const int ranks : {1, 2, 4, 8, 9}) {
    for (const Route& route : routes(TransportChoice::kAuto)) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        runtime::PrefillOptions options;
        options.merge = route.merge;
        const auto result = run_prefill(communicator, TransportChoice::kAuto, layer, route.balance, options);
        const std::scoped_lock hold(lock);
        if (first.empty()) first = result.out;
        EXPECT_EQ(first, result.out) << ranks << " ranks, " << describe(route);
      });
    }
  }
}

}  // namespace
}  // namespace ringmark::test
