#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/mma/attend.h"
#include "tests/kernels/cuda/chosen_case.h"

namespace ringmark::kernels::cuda {
namespace {

void attend_window(DeviceCase& device, RowRange rows) {
  mma::attend_window(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                     device.out.data(), device.lse.data(), device.stream);
}

TEST(MmaAttendWindow, random_problems_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes(1, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    const AttentionCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    DeviceCase device(c, Path::kMma);
    attend_window(device, device.all());
    const Results got = device.results(c), want = exact_window(c);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, kLseBound), "");
    expect_close(problem, got.out, want.out);
  });
}

TEST(MmaAttendWindow, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes(2, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    AttentionCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    DeviceCase whole(c, Path::kMma), parts(c, Path::kMma);
    attend_window(whole, whole.all());
    const std::vector<std::int64_t> cuts = random_cuts(problem.tokens, c.random);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) attend_window(parts, {cuts[i], cuts[i + 1]});
    const Results want = whole.results(c), got = parts.results(c);
    EXPECT_EQ(first_differences(got.out, want.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(got.out, want.out) && same_bits(got.lse, want.lse));
  });
}

TEST(MmaAttendWindow, rows_out_of_the_range_stay_as_they_are) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  const AttentionCase c({.tokens = 300, .heads = 4, .kv_heads = 2, .cu_seqlens = {}}, {.window = 70}, 3);
  DeviceCase device(c, Path::kMma);
  attend_window(device, {37, 205});
  const Results results = device.results(c);
  for (std::int64_t row = 0; row < 300; ++row) {
    ASSERT_EQ(std::isnan(results.lse[static_cast<std::size_t>(row * 4)]), row < 37 || row >= 205) << "row " << row;
    ASSERT_EQ(std::isnan(results.out[static_cast<std::size_t>(row * 256)]), row < 37 || row >= 205) << "row " << row;
  }
}

// A tile may hold rows that share nothing, as where two shards of a zigzag layout meet, or in no order at all. Blocks
// that no row of the tile needs are not there.
TEST(MmaAttendWindow, rows_may_come_in_any_order_of_tokens) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t group : {1, 4, 16}) {
    const AttentionProblem problem{.tokens = 1500, .heads = group, .head_dim = 64, .cu_seqlens = {0, 700, 1500}};
    AttentionCase c(problem, {.window = 150, .sinks = 70}, 4);
    DeviceCase device(c, Path::kMma);
    attend_window(device, device.all());
    const Results ordered = device.results(c);

    std::vector<TokenId> tokens = c.tokens;
    std::shuffle(tokens.begin() + 200, tokens.end() - 200, c.random);
    std::vector<float> queries;
    for (const TokenId token : tokens) {
      for (std::int64_t head = 0; head < group; ++head) {
        const std::vector<float> query = c.queries.row(token.value(), head);
        queries.insert(queries.end(), query.begin(), query.end());
      }
    }
    const StoredTensor stored(problem.dtype, problem.tokens, group, 64, queries);
    const auto device_queries = upload(stored.view(), device.stream);
    const auto rows = upload(row_geometry(c.grid, tokens), device.stream);
    device.out.fill_bytes(0xFF, device.stream);
    mma::attend_window(device.shape, {rows.data(), device.geometry().chunks, problem.tokens}, device.blocks.view(),
                       device_queries.data(), device.all(), device.out.data(), device.lse.data(), device.stream);
    const Results shuffled = device.results(c);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const auto token = static_cast<std::size_t>(tokens[row].value());
      const auto floats = static_cast<std::size_t>(group * 64);
      ASSERT_EQ(std::memcmp(&shuffled.out[row * floats], &ordered.out[token * floats], floats * sizeof(float)), 0)
          << "row " << row << " token " << token << " group " << group;
    }
  }
}

// Zero queries make every key weigh the same: lse is the log of how often keys were counted.
TEST(MmaAttendWindow, every_key_counts_once) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t sinks : {0, 1, 66, 500}) {
    for (const std::int64_t window : {0, 1, 64, 100, 400}) {
      const AttentionProblem problem{.tokens = 330, .landmark_slots = sinks % 2 == 0, .cu_seqlens = {}};
      const AttentionCase c(problem, {.window = window, .sinks = sinks}, 5);
      DeviceCase device(c, Path::kMma);
      device.queries.fill_bytes(0, device.stream);
      attend_window(device, device.all());
      const Results results = device.results(c);
      for (std::int64_t row = 0; row < 330; ++row) {
        const auto keys = static_cast<double>(window_keys(c.grid, TokenId(row)).size());
        ASSERT_NEAR(results.lse[static_cast<std::size_t>(row)], std::log(keys), 2e-6) << "row " << row;
      }
    }
  }
}

// A geometry by hand: no row sees a key.
TEST(MmaAttendWindow, a_row_without_a_key_is_zero_with_lse_minus_infinity) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  const AttentionCase c({.tokens = 100, .heads = 2, .cu_seqlens = {}}, {.window = 64}, 6);
  DeviceCase device(c, Path::kMma);
  std::vector<RowGeometry> rows = row_geometry(c.grid, c.tokens);
  for (std::size_t row = 0; row < 100; row += 3) rows[row].visible = 0, rows[row].window_first = rows[row].chunk;
  const auto geometry = upload(rows, device.stream);
  mma::attend_window(device.shape, {geometry.data(), device.geometry().chunks, 100}, device.blocks.view(),
                     device.queries.data(), device.all(), device.out.data(), device.lse.data(), device.stream);
  const Results results = device.results(c), want = exact_window(c);
  for (std::size_t row = 0; row < 100; ++row) {
    const bool empty = row % 3 == 0;
    ASSERT_NEAR(results.out[row * 128], empty ? 0.0f : want.out[row * 128], empty ? 0.0 : 8e-3) << "row " << row;
    if (empty) {
      ASSERT_EQ(results.lse[row * 2], kMinusInfinity) << "row " << row;
    }
  }
}

// Long enough for the maximum to move and for stretches of more than 32 chunks.
TEST(MmaAttendWindow, a_long_dense_problem_matches_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionProblem problem{.tokens = 5000,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = head_dim,
                                   .dtype = DType::kBfloat16,
                                   .scale = 0.5f,
                                   .cu_seqlens = {}};
    const AttentionCase c(problem, {.window = 5000, .topk = 0}, 7);
    DeviceCase device(c, Path::kMma);
    attend_window(device, device.all());
    const Results got = device.results(c), want = exact_window(c);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, 1e-4), "");
    EXPECT_EQ(first_differences(got.out, want.out, problem.heads, head_dim, 1.5e-2), "");
  }
}

// Results over the given cuts of the rows, one call each.
std::vector<float> chosen_on_device(const ChosenCase& c, const std::vector<std::int64_t>& cuts) {
  DeviceCase device(c, Path::kMma);
  const auto scores = upload(c.scores, device.stream);
  const auto window_weight = upload(c.window_weight, device.stream);
  const auto selection = upload(c.selection.chunks, device.stream);
  UnionPlanner planner;
  device.out.upload(c.window.out.data(), device.out.size(), device.stream);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const RowRange rows{cuts[i], cuts[i + 1]};
    const UnionPlan plan = planner.plan(device.shape, selection.data(), rows, device.stream);
    mma::attend_chosen(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows, plan,
                       selection.data(), scores.data(), window_weight.data(), device.out.data(), device.stream);
    device.stream.wait();
  }
  return download(device.out, device.stream);
}

TEST(MmaAttendChosen, random_problems_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes(8, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    const ChosenCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    expect_close(problem, chosen_on_device(c, {0, problem.tokens}), c.exact_mixture().out);
  });
}

// More than 32 items a tile, and rows that fill all slots.
TEST(MmaAttendChosen, long_unions_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t group : {1, 4, 16}) {
    const AttentionProblem problem{
        .tokens = 3000, .heads = group, .head_dim = 128, .landmark_slots = group == 4, .cu_seqlens = {}};
    const ChosenCase c(problem, {.window = 200, .topk = group == 16 ? 64 : 20, .sinks = 3}, 9);
    SCOPED_TRACE(words(c));
    const std::vector<float> whole = chosen_on_device(c, {0, problem.tokens});
    expect_close(problem, whole, c.exact_mixture().out);
    EXPECT_TRUE(same_bits(whole, chosen_on_device(c, {0, 1, 1017, 2444, problem.tokens})));
  }
}

TEST(MmaAttendChosen, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes(10, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    ChosenCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    const std::vector<float> whole = chosen_on_device(c, {0, problem.tokens});
    const std::vector<float> parts = chosen_on_device(c, random_cuts(problem.tokens, c.random));
    EXPECT_EQ(first_differences(parts, whole, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(parts, whole));
  });
}

TEST(MmaAttendChosen, rows_without_a_chosen_chunk_and_rows_out_of_range_stay_as_they_are) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  const AttentionProblem problem{.tokens = 600, .heads = 8, .kv_heads = 2, .head_dim = 128, .cu_seqlens = {}};
  const ChosenCase c(problem, {.window = 100, .topk = 3}, 11);
  const std::vector<float> out = chosen_on_device(c, {37, 555});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / 1024), head = static_cast<std::int64_t>(i / 128 % 8);
    const bool untouched = row < 37 || row >= 555 || c.selection.chosen(row, head / 4).empty();
    ASSERT_EQ(std::memcmp(&out[i], &c.window.out[i], sizeof(float)) == 0, untouched) << "row " << row;
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
