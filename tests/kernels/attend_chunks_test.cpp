#include "kernels/attend_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attend_window.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/exact_checks.h"
#include "tests/kernels/random_selection.h"

namespace ringmark::kernels {
namespace {

constexpr double kBound = 2e-5;

enum class Landmarks { kPerQueryHead, kPerKvHead, kKeys };

// A problem with landmarks, a selection and window results.
struct ChunkCase : AttentionCase {
  ChunkCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed, Landmarks kind)
      : AttentionCase(p, wanted, seed),
        retrieval(p.dtype, p.tokens, p.heads, p.head_dim, normal_floats(random, p.tokens * p.heads * p.head_dim)),
        selection(p.tokens, wanted.choosers(p), wanted.topk),
        window(p, p.tokens) {
    make_records(kind);
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) choose(row, chooser);
    }
    window.out = normal_floats(random, static_cast<std::int64_t>(window.out.size()));
    window.lse = normal_floats(random, static_cast<std::int64_t>(window.lse.size()));
  }

  void make_records(Landmarks kind) {
    LandmarkShape& shape = landmarks.shape;
    shape = {kind == Landmarks::kPerQueryHead ? problem.heads : problem.kv_heads,
             kind == Landmarks::kKeys ? problem.chunk_size : 1, problem.head_dim};
    records = normal_floats(random, grid.chunk_count() * shape.record_floats());
    landmarks.records.assign(static_cast<std::size_t>(grid.chunk_count()), nullptr);
    for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
      float* record = records.data() + chunk.value() * shape.record_floats();
      landmarks.records[static_cast<std::size_t>(chunk.value())] = record;
      if (kind == Landmarks::kKeys) copy_keys(chunk, record);
    }
  }

  void copy_keys(ChunkId chunk, float* record) const {
    std::fill_n(record, landmarks.shape.record_floats(), -kMinusInfinity);
    const TokenId begin = grid.tokens_of(chunk).begin;
    for (TokenId token = grid.keys_of(chunk).begin; token < grid.keys_of(chunk).end; ++token) {
      for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
        keys.view().load(token.value(), head,
                         record + (head * problem.chunk_size + (token - begin)) * problem.head_dim);
      }
    }
    std::fill_n(record + landmarks.shape.bias_offset(), problem.kv_heads, 0.0f);
  }

  void choose(std::int64_t row, std::int64_t chooser) {
    choose_at_random(grid, random, 2, row, chooser, selection,
                     [&] { return static_cast<std::size_t>(selection.topk); });
  }

  std::span<const std::int32_t> chosen(std::int64_t row, std::int64_t head) const {
    return selection.chosen(row, head / (problem.heads / selection.choosers));
  }

  void attend(Results& results, RowRange rows, int threads) const {
    attend_chunks(problem, grid, queries.view(), retrieval.view(), selection, rows, blocks.table(), landmarks,
                  results.out_view(), results.lse_view(), threads);
  }

  std::vector<TokenId> chunk_keys(ChunkId chunk) const {
    std::vector<TokenId> list;
    for (TokenId token = grid.keys_of(chunk).begin; token < grid.keys_of(chunk).end; ++token) list.push_back(token);
    return list;
  }

  double exact_score(std::int64_t row, std::int64_t head, ChunkId chunk) const {
    const LandmarkShape& shape = landmarks.shape;
    const std::int64_t landmark_head = shape.head_of(head, problem.heads);
    const float* record = landmarks.of(chunk);
    const std::vector<float> query = retrieval.row(row, head);
    double sum = 0.0;
    for (std::int64_t v = 0; v < shape.vectors; ++v) {
      const float* key = record + (landmark_head * shape.vectors + v) * problem.head_dim;
      if (key[0] == -kMinusInfinity) continue;
      sum += std::exp(double{problem.scale} * dot(query, std::vector<float>(key, key + problem.head_dim)));
    }
    return record[shape.bias_offset() + landmark_head] + std::log(sum);
  }

  ExactRow exact(std::int64_t row, std::int64_t head) const {
    const auto at = static_cast<std::size_t>(row * problem.heads + head);
    double total = std::exp(double{window.lse[at]});
    ExactRow mixed{std::vector<double>(static_cast<std::size_t>(problem.head_dim), 0.0)};
    const auto dims = static_cast<std::size_t>(problem.head_dim);
    for (std::size_t k = 0; k < dims && total > 0.0; ++k) mixed.out[k] = total * double{window.out[at * dims + k]};
    for (const std::int32_t chunk : chosen(row, head)) {
      const double weight = std::exp(exact_score(row, head, ChunkId(chunk)));
      const ExactRow inside = attend_exactly(*this, row, head, chunk_keys(ChunkId(chunk)));
      for (std::size_t k = 0; k < dims; ++k) mixed.out[k] += weight * inside.out[k];
      total += weight;
    }
    for (double& component : mixed.out) component /= total;
    mixed.lse = std::log(total);
    return mixed;
  }

  StoredTensor retrieval;
  Selection selection;
  Results window;
  std::vector<float> records;
  LandmarkRecords landmarks;
};

// Two tokens in chunks of one; the second has chosen the first one's chunk, whose value is `value`.
std::pair<float, float> mix_two(float window_out, float window_lse, float key, float bias, float value) {
  const AttentionProblem problem{
      .tokens = 2, .head_dim = 1, .chunk_size = 1, .dtype = DType::kFloat32, .scale = 1.0f, .cu_seqlens = {}};
  const AttentionPolicy policy{.window = 1, .topk = 1};
  const partition::SequenceGrid grid(problem, policy);
  const StoredTensor queries(problem.dtype, 2, 1, 1, {1, 1});
  const StoredBlocks blocks(problem, grid, {9, 9}, {value, kNaN});
  const std::vector<float> record = {key, bias};
  const LandmarkRecords landmarks{{1, 1, 1}, {record.data(), nullptr}};
  Selection selection(2, 1, 1);
  selection.slots(1, 0)[0] = 0;
  Results results(problem, 2);
  results.out = {5, window_out};
  results.lse = {6, window_lse};
  attend_chunks(problem, grid, queries.view(), queries.view(), selection, {0, 2}, blocks.table(), landmarks,
                results.out_view(), results.lse_view(), 1);
  EXPECT_EQ(results.out[0], 5.0f);
  EXPECT_EQ(results.lse[0], 6.0f);
  return {results.out[1], results.lse[1]};
}

TEST(AttendChunks, a_chunk_with_the_window_s_log_mass_takes_half) {
  const auto [out, lse] = mix_two(1.0f, 0.0f, 0.0f, 0.0f, 3.0f);
  EXPECT_EQ(out, 2.0f);
  EXPECT_FLOAT_EQ(lse, std::log(2.0f));
}

TEST(AttendChunks, the_bias_is_a_log_mass) {
  const auto [out, lse] = mix_two(1.0f, 0.0f, 0.0f, std::log(3.0f), 5.0f);
  EXPECT_NEAR(out, (1.0f + 3.0f * 5.0f) / 4.0f, 1e-6);
  EXPECT_NEAR(lse, std::log(4.0f), 1e-6);
}

TEST(AttendChunks, an_empty_window_leaves_the_chunk_alone_even_when_its_result_is_not_a_number) {
  const auto [out, lse] = mix_two(kNaN, kMinusInfinity, 2.0f, 0.5f, 3.0f);
  EXPECT_EQ(out, 3.0f);
  EXPECT_EQ(lse, 2.5f);
}

TEST(AttendChunks, random_problems_match_fp64) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const auto kind = pick<Landmarks>(random, {Landmarks::kPerQueryHead, Landmarks::kPerKvHead, Landmarks::kKeys});
    ChunkCase c(problem, random_chooser(random, problem), random(), kind);
    for (std::size_t i = 0; i < c.window.lse.size(); i += 7) {
      const auto at = static_cast<std::int64_t>(i);
      if (c.chosen(at / problem.heads, at % problem.heads).empty()) continue;
      c.window.lse[i] = kMinusInfinity;
      std::fill_n(c.window.out.begin() + static_cast<std::int64_t>(i) * problem.head_dim, problem.head_dim, kNaN);
    }
    Results results = c.window;
    c.attend(results, c.all(), 1 + trial % 3);
    ASSERT_NO_FATAL_FAILURE(check_samples(c, results, 30, random, kBound, [&](std::int64_t row, std::int64_t head) {
      std::optional<ExactRow> expected;
      if (c.selection.topk > 0 && !c.chosen(row, head).empty()) expected = c.exact(row, head);
      return expected;
    }));
  }
}

TEST(AttendChunks, bits_depend_on_neither_range_threads_nor_instruction_set) {
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const AttentionProblem problem = random_problem(random);
    const auto kind = pick<Landmarks>(random, {Landmarks::kPerQueryHead, Landmarks::kPerKvHead, Landmarks::kKeys});
    const ChunkCase c(problem, random_chooser(random, problem), random(), kind);
    Results whole = c.window;
    c.attend(whole, c.all(), 1);
    ASSERT_NO_FATAL_FAILURE(check_ranges(problem, c.window, whole, trial % 2 == 0, random,
                                         [&](Results& parts, RowRange rows) { c.attend(parts, rows, 2); }));
  }
}

TEST(AttendChunks, rows_without_a_chosen_chunk_and_rows_out_of_range_stay_as_they_are) {
  const AttentionProblem problem{.tokens = 200, .heads = 2, .head_dim = 16, .chunk_size = 16, .cu_seqlens = {}};
  const ChunkCase c(problem, {.window = 32, .topk = 3}, 13, Landmarks::kPerQueryHead);
  check_untouched_rows(c, 180);
}

// With nothing but one chunk in the mix, the lse is that chunk's score.
TEST(AttendChunks, scores_are_the_chain_of_fused_multiply_adds_plus_bias) {
  const AttentionProblem problem{
      .tokens = 300, .heads = 4, .kv_heads = 2, .head_dim = 80, .chunk_size = 16, .scale = 0.3f, .cu_seqlens = {}};
  const ChunkCase c(problem, {.window = 16, .topk = 1}, 14, Landmarks::kPerQueryHead);
  Results results = c.window;
  std::fill(results.lse.begin(), results.lse.end(), kMinusInfinity);
  c.attend(results, c.all(), 1);
  for (std::int64_t row = 0; row < 300; ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      const auto chosen = c.selection.chosen(row, head / 2);
      if (chosen.empty()) continue;
      const float* record = c.landmarks.of(ChunkId(chosen[0]));
      const std::vector<float> query = c.retrieval.row(row, head);
      float chain = 0.0f;
      for (std::int64_t k = 0; k < 80; ++k) {
        chain = std::fma(problem.scale * query[static_cast<std::size_t>(k)], record[head * 80 + k], chain);
      }
      const float score = chain + record[c.landmarks.shape.bias_offset() + head];
      ASSERT_EQ(results.lse[static_cast<std::size_t>(row * 4 + head)], score);
    }
  }
}

// The exact log masses and no limit on the choice leave nothing out: dense causal attention.
TEST(AttendChunks, all_chunks_with_their_exact_masses_are_dense_attention) {
  for (const bool slots : {false, true}) {
    const AttentionProblem problem{.tokens = 333,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 32,
                                   .chunk_size = 16,
                                   .dtype = DType::kFloat32,
                                   .scale = 0.2f,
                                   .landmark_slots = slots,
                                   .cu_seqlens = {}};
    const AttentionPolicy policy{.window = 20, .topk = 30, .sinks = 5};
    AttentionPolicy everything = policy;
    everything.window = 333;
    const ChunkCase c(problem, policy, 15, Landmarks::kKeys);
    const partition::SequenceGrid dense_grid(problem, everything);
    Results dense(problem, 333);
    attend_window(problem, dense_grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), dense.out_view(),
                  dense.lse_view(), 1);
    Results mixed(problem, 333);
    attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), mixed.out_view(),
                  mixed.lse_view(), 1);
    attend_chunks(problem, c.grid, c.queries.view(), c.queries.view(), c.selection, c.all(), c.blocks.table(),
                  c.landmarks, mixed.out_view(), mixed.lse_view(), 1);
    for (std::size_t i = 0; i < dense.out.size(); ++i) ASSERT_NEAR(mixed.out[i], dense.out[i], 5e-6);
    for (std::size_t i = 0; i < dense.lse.size(); ++i) ASSERT_NEAR(mixed.lse[i], dense.lse[i], 5e-6);
  }
}

TEST(AttendChunks, query_heads_use_the_kv_head_of_their_group) {
  for (const auto& [heads, kv_heads] : {std::pair<int, int>{28, 7}, {8, 1}, {40, 8}, {16, 2}}) {
    const AttentionProblem problem{
        .tokens = 80, .heads = heads, .kv_heads = kv_heads, .head_dim = 8, .chunk_size = 16, .cu_seqlens = {}};
    const ChunkCase c(problem, {.window = 1, .topk = 2}, 16, Landmarks::kPerQueryHead);
    std::vector<float> values(static_cast<std::size_t>(80 * kv_heads * 8));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i / 8 % static_cast<std::size_t>(kv_heads));
    }
    const StoredBlocks blocks(problem, c.grid, AttentionCase::all_rows(c.keys), values);
    Results results(problem, 80);
    std::fill(results.lse.begin(), results.lse.end(), kMinusInfinity);
    attend_chunks(problem, c.grid, c.queries.view(), c.retrieval.view(), c.selection, c.all(), blocks.table(),
                  c.landmarks, results.out_view(), results.lse_view(), 2);
    for (std::int64_t i = 16 * heads; i < 80 * heads; ++i) {
      const std::int64_t kv_head = i % heads / (heads / kv_heads);
      ASSERT_NEAR(results.out[static_cast<std::size_t>(i * 8)], static_cast<float>(kv_head), 1e-5);
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels
