#include "kernels/cuda/row_geometry.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {
namespace {

using partition::Balance;

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  return problem;
}

std::vector<RowGeometry> expand(const std::vector<RowRun>& runs) {
  std::vector<RowGeometry> rows;
  for (const RowRun& run : runs) {
    EXPECT_EQ(run.first_row, std::ssize(rows));
    for (std::int64_t n = 0; n < run.rows; ++n) {
      rows.push_back(run.first);
      rows.back().visible += static_cast<std::int32_t>(n);
    }
  }
  return rows;
}

void expect_equal(const std::vector<RowGeometry>& a, const std::vector<RowGeometry>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) ASSERT_EQ(std::memcmp(&a[n], &b[n], sizeof a[n]), 0) << "row " << n;
}

// Chunks of 8 and a window of 10 tokens: from the second row of a chunk on it begins a chunk later, and the row may
// choose one chunk more.
TEST(RowRuns, by_hand) {
  const AttentionProblem problem = problem_of(32, 8);
  const AttentionPolicy policy{10, 2, 0, Scorer::kHils};
  const partition::SequenceGrid grid(problem, policy);
  const auto layout = partition::make_layout(grid, 1, Balance::kContiguous);
  std::vector<std::array<std::int64_t, 4>> found;
  for (const RowRun& run : row_runs(grid, layout, RankId(0))) {
    found.push_back({run.first_row, run.rows, run.first.window_first, run.first.eligible_end});
  }
  EXPECT_EQ(found, (std::vector<std::array<std::int64_t, 4>>{
                       {0, 8, 0, 0}, {8, 8, 0, 0}, {16, 1, 0, 0}, {17, 7, 1, 1}, {24, 1, 1, 1}, {25, 7, 2, 2}}));
}

TEST(RowRuns, are_the_geometry_of_every_row) {
  AttentionProblem packed = problem_of(203, 8);
  packed.cu_seqlens = {0, 3, 4, 90, 90, 203};
  for (const AttentionProblem& problem : {problem_of(1, 8), problem_of(203, 8), problem_of(500, 64), packed}) {
    for (const AttentionPolicy& policy : {AttentionPolicy{0, 2, 0, Scorer::kHils},
                                          {1, 2, 0, Scorer::kHils},
                                          {20, 2, 5, Scorer::kHils},
                                          {33, 2, 19, Scorer::kMean},
                                          {33, 0, 19, Scorer::kNone}}) {
      const partition::SequenceGrid grid(problem, policy);
      for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
        for (const int ranks : {1, 3}) {
          const auto layout = partition::make_layout(grid, ranks, balance);
          for (RankId rank(0); rank < RankId(ranks); ++rank) {
            expect_equal(expand(row_runs(grid, layout, rank)), row_geometry(grid, layout.tokens_of(rank)));
          }
        }
      }
    }
  }
}

TEST(RowRuns, expand_on_the_device) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  const AttentionProblem problem = problem_of(5000, 64);
  const AttentionPolicy policy{130, 2, 70, Scorer::kHils};
  const partition::SequenceGrid grid(problem, policy);
  const auto layout = partition::make_layout(grid, 3, Balance::kZigzag);
  const std::vector<RowRun> runs = row_runs(grid, layout, RankId(1));
  const std::vector<RowGeometry> rows = row_geometry(grid, layout.tokens_of(RankId(1)));
  ringmark::cuda::Stream stream;
  const auto device_runs = upload(runs, stream);
  ringmark::cuda::Buffer<RowGeometry> device_rows(std::ssize(rows));
  device_rows.fill_bytes(0xFF, stream);
  expand_row_runs(device_runs.data(), std::ssize(runs), device_rows.data(), stream);
  expect_equal(download(device_rows, stream), rows);
}

}  // namespace
}  // namespace ringmark::kernels::cuda
