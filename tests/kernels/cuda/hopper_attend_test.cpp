#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "kernels/attend_window.h"
#include "kernels/cuda/hopper/attend.h"
#include "tests/kernels/cuda/chosen_case.h"

namespace ringmark::kernels::cuda {
namespace {

int host_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

Results window_on_cpu(const AttentionCase& c) {
  Results results(c.problem, c.problem.tokens);
  kernels::attend_window(c.problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), results.out_view(),
                         results.lse_view(), host_threads());
  return results;
}

void attend_window(DeviceCase& device, RowRange rows) {
  hopper::attend_window(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                        device.out.data(), device.lse.data(), device.stream);
}

TEST(HopperAttendWindow, random_problems_match_the_cpu) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(1, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    const AttentionCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results got = device.results(c), want = window_on_cpu(c);
    expect_close(problem, got.out, want.out);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, kLseBound), "");
  });
}

TEST(HopperAttendWindow, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(2, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    AttentionCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    DeviceCase whole(c, Path::kHopper), parts(c, Path::kHopper);
    attend_window(whole, whole.all());
    const std::vector<std::int64_t> cuts = random_cuts(problem.tokens, c.random);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) attend_window(parts, {cuts[i], cuts[i + 1]});
    const Results a = whole.results(c), b = parts.results(c);
    EXPECT_EQ(first_differences(b.out, a.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(a.out, b.out) && same_bits(a.lse, b.lse));
  });
}

// A rank may hold distant pieces of the sequence; a tile may then see distant chunks.
TEST(HopperAttendWindow, rows_may_come_in_any_order_of_tokens) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(3, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    AttentionCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results ordered = device.results(c);

    std::vector<TokenId> tokens = c.tokens;
    const auto piece = static_cast<std::ptrdiff_t>(c.random() % tokens.size());
    std::rotate(tokens.begin(), tokens.begin() + piece, tokens.end());
    const std::int64_t floats = problem.heads * problem.head_dim;
    std::vector<float> values = AttentionCase::all_rows(c.queries);
    std::rotate(values.begin(), values.begin() + piece * floats, values.end());
    const StoredTensor queries(problem.dtype, problem.tokens, problem.heads, problem.head_dim, values);
    const auto device_queries = upload(queries.view(), device.stream);
    const auto rows = upload(row_geometry(c.grid, tokens), device.stream);
    device.out.fill_bytes(0xFF, device.stream);
    hopper::attend_window(device.shape, {rows.data(), device.geometry().chunks, problem.tokens}, device.blocks.view(),
                          device_queries.data(), device.all(), device.out.data(), device.lse.data(), device.stream);
    Results rotated = device.results(c);
    std::rotate(rotated.out.begin(), rotated.out.end() - piece * floats, rotated.out.end());
    std::rotate(rotated.lse.begin(), rotated.lse.end() - piece * problem.heads, rotated.lse.end());
    EXPECT_EQ(first_differences(rotated.out, ordered.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(rotated.out, ordered.out) && same_bits(rotated.lse, ordered.lse));
  });
}

// Enough tiles for several a thread block, and long enough for the maximum to move.
TEST(HopperAttendWindow, a_long_dense_problem_matches_the_cpu) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionProblem problem{.tokens = 6000,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_dim = head_dim,
                                   .dtype = DType::kBfloat16,
                                   .scale = 0.5f,
                                   .cu_seqlens = {}};
    const AttentionCase c(problem, {.window = 6000, .topk = 0}, 4);
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results got = device.results(c), want = window_on_cpu(c);
    expect_close(problem, got.out, want.out);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, 1e-4), "");
  }
}

// The union plan of a range, by the plainest reading of its definition.
struct HostPlan {
  HostPlan(const ChosenCase& c, RowRange rows, cudaStream_t stream) {
    const std::int64_t tile_queries = 128 / c.problem.group(), half_queries = tile_queries / 2;
    tiles = (rows.size() + tile_queries - 1) / tile_queries;
    std::vector<UnionItem> all;
    std::vector<std::int64_t> starts = {0};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t kv_head = 0; kv_head < c.problem.kv_heads; ++kv_head) {
        std::vector<UnionItem> of_chunk(static_cast<std::size_t>(c.grid.chunk_count()));
        for (std::int64_t q = 0; q < tile_queries; ++q) {
          const std::int64_t row = rows.begin + tile * tile_queries + q;
          if (row >= rows.end) break;
          for (const std::int32_t chunk : c.selection.chosen(row, kv_head)) {
            of_chunk[static_cast<std::size_t>(chunk)].members[q / half_queries] |= std::uint64_t{1}
                                                                                   << (q % half_queries);
          }
        }
        for (std::size_t chunk = 0; chunk < of_chunk.size(); ++chunk) {
          if ((of_chunk[chunk].members[0] | of_chunk[chunk].members[1]) == 0) continue;
          of_chunk[chunk].chunk = static_cast<std::int32_t>(chunk);
          all.push_back(of_chunk[chunk]);
        }
        starts.push_back(static_cast<std::int64_t>(all.size()));
      }
    }
    if (all.empty()) all.emplace_back();
    items = upload(all, stream);
    offsets = upload(starts, stream);
  }

  UnionPlan view(std::int64_t group) const {
    return {static_cast<std::int32_t>(128 / group), tiles, items.data(), offsets.data()};
  }

  std::int64_t tiles;
  ringmark::cuda::Buffer<UnionItem> items;
  ringmark::cuda::Buffer<std::int64_t> offsets;
};

// Results over the given cuts of the rows, one call each.
std::vector<float> chosen_on_device(const ChosenCase& c, const std::vector<std::int64_t>& cuts) {
  DeviceCase device(c, Path::kHopper);
  const auto scores = upload(c.scores, device.stream);
  const auto window_weight = upload(c.window_weight, device.stream);
  device.out.upload(c.window.out.data(), device.out.size(), device.stream);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const RowRange rows{cuts[i], cuts[i + 1]};
    const HostPlan plan(c, rows, device.stream);
    hopper::attend_chosen(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                          plan.view(c.problem.group()), nullptr, scores.data(), window_weight.data(), device.out.data(),
                          device.stream);
    device.stream.wait();
  }
  return download(device.out, device.stream);
}

TEST(HopperAttendChosen, random_problems_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(5, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    const ChosenCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    expect_close(problem, chosen_on_device(c, {0, problem.tokens}), c.exact_mixture().out);
  });
}

TEST(HopperAttendChosen, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(6, [](const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed) {
    ChosenCase c(problem, policy, seed);
    SCOPED_TRACE(words(c));
    const std::vector<float> whole = chosen_on_device(c, {0, problem.tokens});
    const std::vector<float> parts = chosen_on_device(c, random_cuts(problem.tokens, c.random));
    EXPECT_EQ(first_differences(parts, whole, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(parts, whole));
  });
}

TEST(HopperAttendChosen, rows_without_a_chosen_chunk_and_rows_out_of_range_stay_as_they_are) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  const AttentionProblem problem{.tokens = 600, .heads = 8, .kv_heads = 2, .head_dim = 128, .cu_seqlens = {}};
  const ChosenCase c(problem, {.window = 100, .topk = 3}, 7);
  const std::vector<float> out = chosen_on_device(c, {37, 555});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / 1024), head = static_cast<std::int64_t>(i / 128 % 8);
    const bool untouched = row < 37 || row >= 555 || c.selection.chosen(row, head / 4).empty();
    ASSERT_EQ(std::memcmp(&out[i], &c.window.out[i], sizeof(float)) == 0, untouched) << "row " << row;
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
