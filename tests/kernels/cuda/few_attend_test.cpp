#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attend_window.h"
#include "kernels/cuda/few/attend.h"
#include "tests/kernels/cuda/chosen_case.h"
#include "tests/kernels/cuda/device_case.h"
#include "tests/kernels/cuda/window_checks.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr double kBound = 2e-5;

// Room for the parts of some rows, full of NaN.
struct Parts {
  Parts(const DeviceCase& device, std::int64_t rows)
      : out(few::PartRoom::floats_of(device.shape, rows)), mass(few::PartRoom::masses_of(device.shape, rows)) {
    out.fill_bytes(0xFF, device.stream);
    mass.fill_bytes(0xFF, device.stream);
  }
  few::PartRoom room() const { return {out.data(), mass.data()}; }

  ringmark::cuda::Buffer<float> out;
  ringmark::cuda::Buffer<float2> mass;
};

// What the row that reads most reads of its window and sinks.
std::int32_t most_chunks(const AttentionCase& c) {
  std::int32_t most = 0;
  for (const RowGeometry& row : row_geometry(c.grid, c.tokens)) {
    most = std::max(most, row.sink_last - row.sink_first + row.chunk - row.window_first + 1);
  }
  return most;
}

void attend_window(const AttentionCase& c, const DeviceCase& device, RowRange rows) {
  const Parts parts(device, rows.size());
  few::attend_window(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows, most_chunks(c),
                     parts.room(), device.out.data(), device.lse.data(), device.stream);
  device.stream.wait();
}

TEST(FewAttendWindow, matches_the_cpu_on_random_problems) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  check_window_against_cpu(
      kBound, [](const AttentionCase& c, const DeviceCase& device, RowRange rows) { attend_window(c, device, rows); });
}

TEST(FewAttendWindow, a_row_does_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  check_window_rows_alone(
      [](const AttentionCase& c, const DeviceCase& device, RowRange rows) { attend_window(c, device, rows); });
}

// More chunks than parts: 100 chunks of 2 tokens, a part has 4.
TEST(FewAttendWindow, parts_of_several_chunks) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  const AttentionProblem problem{.tokens = 200, .heads = 2, .head_dim = 16, .chunk_size = 2, .cu_seqlens = {}};
  const AttentionCase c(problem, {.window = 200}, 53);
  const DeviceCase device(c, Path::kSimt);
  attend_window(c, device, {199, 200});
  const Results got = device.results(c);
  Results want(problem, problem.tokens);
  kernels::attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), want.out_view(),
                         want.lse_view(), 1);
  for (std::size_t i = 199 * 32; i < 200 * 32; ++i) EXPECT_NEAR(got.out[i], want.out[i], kBound);
  EXPECT_TRUE(std::isnan(got.out[0])) << "a row out of range was written";
}

void attend_chosen(const ChosenCase& c, const DeviceCase& device, RowRange rows) {
  const Parts parts(device, rows.size());
  const auto selection = upload(c.selection.chunks, device.stream);
  const auto scores = upload(c.scores, device.stream);
  const auto weights = upload(c.window_weight, device.stream);
  few::attend_chosen(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                     selection.data(), scores.data(), weights.data(), parts.room(), device.out.data(), device.stream);
  device.stream.wait();
}

TEST(FewAttendChosen, random_mixtures_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(54);
  for (int trial = 0; trial < 40; ++trial) {
    const AttentionProblem problem = random_problem(random);
    AttentionPolicy policy = random_policy(random, problem);
    policy.topk = pick<std::int64_t>(random, {1, 3, 8, 40});
    const ChosenCase c(problem, policy, random());
    DeviceCase whole(c, Path::kSimt), parts(c, Path::kSimt);
    for (DeviceCase* device : {&whole, &parts}) {
      device->out.upload(c.window.out.data(), device->out.size(), device->stream);
    }
    attend_chosen(c, whole, whole.all());
    for (std::int64_t begin = 0; begin < problem.tokens;) {
      const auto end = std::uniform_int_distribution<std::int64_t>(begin + 1, problem.tokens)(random);
      attend_chosen(c, parts, {begin, end});
      begin = end;
    }
    const Results got = whole.results(c), in_parts = parts.results(c), want = c.exact_mixture();
    ASSERT_EQ(first_differences(got.out, want.out, problem.heads, problem.head_dim, kBound), "")
        << name_of_case(problem);
    ASSERT_TRUE(same_bits(got.out, in_parts.out)) << name_of_case(problem);
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
