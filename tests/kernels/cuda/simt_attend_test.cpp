#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/attend.h"
#include "tests/kernels/cuda/device_case.h"
#include "tests/kernels/cuda/window_checks.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr double kBound = 2e-5;

void attend_window(const DeviceCase& device, RowRange rows) {
  attend_window(Path::kSimt, device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                device.out.data(), device.lse.data(), device.stream);
}

TEST(SimtAttendWindow, matches_the_cpu_on_random_problems) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  check_window_against_cpu(
      kBound, [](const AttentionCase&, const DeviceCase& device, RowRange rows) { attend_window(device, rows); });
}

TEST(SimtAttendWindow, a_row_does_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  check_window_rows_alone(
      [](const AttentionCase&, const DeviceCase& device, RowRange rows) { attend_window(device, rows); });
}

TEST(SimtAttendWindow, rows_out_of_range_stay_as_they_are) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  const AttentionProblem problem{.tokens = 200, .heads = 2, .head_dim = 16, .chunk_size = 16, .cu_seqlens = {}};
  const AttentionCase c(problem, {.window = 32}, 53);
  const DeviceCase device(c, Path::kSimt);
  attend_window(device, {50, 120});
  const Results got = device.results(c);
  for (std::int64_t row = 0; row < problem.tokens; ++row) {
    EXPECT_EQ(std::isnan(got.lse[static_cast<std::size_t>(2 * row)]), row < 50 || row >= 120) << "row " << row;
    EXPECT_EQ(std::isnan(got.out[static_cast<std::size_t>(32 * row + 31)]), row < 50 || row >= 120) << "row " << row;
  }
}

// A selection with scores, a window result, and what they make together.
struct ChosenCase : AttentionCase {
  ChosenCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : AttentionCase(p, wanted, seed), topk(policy.selects() ? wanted.topk : 0), window(p, p.tokens) {
    window.out = normal_floats(random, static_cast<std::int64_t>(window.out.size()));
    window.lse = normal_floats(random, static_cast<std::int64_t>(window.lse.size()));
    selection.assign(static_cast<std::size_t>(p.tokens * p.kv_heads * topk), -1);
    scores.assign(static_cast<std::size_t>(p.tokens * p.heads * topk), kMinusInfinity);
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) choose(row, kv_head);
    }
  }

  std::int64_t chosen(std::int64_t row, std::int64_t kv_head) const {
    const std::int32_t* first = selection.data() + (row * problem.kv_heads + kv_head) * topk;
    return std::find(first, first + topk, -1) - first;
  }

  // An empty window, where there is anything else, holds NaN.
  void choose(std::int64_t row, std::int64_t kv_head) {
    std::vector<std::int32_t> chunks;
    const Range<ChunkId> eligible = grid.eligible(TokenId(row));
    for (ChunkId chunk = eligible.begin; chunk < eligible.end; ++chunk) {
      chunks.push_back(static_cast<std::int32_t>(chunk.value()));
    }
    std::shuffle(chunks.begin(), chunks.end(), random);
    chunks.resize(std::min(chunks.size(), static_cast<std::size_t>(topk)));
    std::sort(chunks.begin(), chunks.end());
    std::copy(chunks.begin(), chunks.end(), selection.begin() + (row * problem.kv_heads + kv_head) * topk);
    for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
      const std::int64_t pair = row * problem.heads + head;
      const std::vector<float> numbers = normal_floats(random, static_cast<std::int64_t>(chunks.size()));
      std::copy(numbers.begin(), numbers.end(), scores.begin() + pair * topk);
      if (chunks.empty() || random() % 7 != 0) continue;
      window.lse[static_cast<std::size_t>(pair)] = kMinusInfinity;
      std::fill_n(window.out.begin() + pair * problem.head_dim, problem.head_dim, kNaN);
    }
  }

  ExactRow exact(std::int64_t row, std::int64_t head) const {
    const std::int64_t pair = row * problem.heads + head, kv_head = head / problem.group();
    const auto dims = static_cast<std::size_t>(problem.head_dim);
    double total = std::exp(double{window.lse[static_cast<std::size_t>(pair)]});
    ExactRow mixed{std::vector<double>(dims, 0.0)};
    const float* window_out = window.out.data() + pair * problem.head_dim;
    for (std::size_t k = 0; k < dims && total > 0.0; ++k) mixed.out[k] = total * double{window_out[k]};
    for (std::int64_t slot = 0; slot < chosen(row, kv_head); ++slot) {
      const ChunkId chunk(selection[static_cast<std::size_t>((row * problem.kv_heads + kv_head) * topk + slot)]);
      std::vector<TokenId> keys_of_chunk;
      for (TokenId token = grid.keys_of(chunk).begin; token < grid.keys_of(chunk).end; ++token) {
        keys_of_chunk.push_back(token);
      }
      const ExactRow inside = attend_exactly(*this, row, head, keys_of_chunk);
      const double weight = std::exp(double{scores[static_cast<std::size_t>(pair * topk + slot)]});
      for (std::size_t k = 0; k < dims; ++k) mixed.out[k] += weight * inside.out[k];
      total += weight;
    }
    for (double& component : mixed.out) component /= total;
    mixed.lse = std::log(total);
    return mixed;
  }

  std::int64_t topk;
  Results window;
  std::vector<std::int32_t> selection;  // [rows, Hkv, topk]
  std::vector<float> scores;            // [rows, H, topk]
};

Results attend_chosen(const ChosenCase& c, const std::vector<RowRange>& ranges) {
  DeviceCase device(c, Path::kSimt);
  device.out.upload(c.window.out.data(), device.out.size(), device.stream);
  device.lse.upload(c.window.lse.data(), device.lse.size(), device.stream);
  const auto selection = upload(c.selection, device.stream);
  const auto scores = upload(c.scores, device.stream);
  ringmark::cuda::Buffer<float> weight(device.lse.size());
  for (const RowRange& rows : ranges) {
    weigh_chunks(device.shape, rows, scores.data(), device.lse.data(), weight.data(), device.stream);
    attend_chosen(Path::kSimt, device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows, {},
                  selection.data(), scores.data(), weight.data(), device.out.data(), device.stream);
  }
  return device.results(c);
}

TEST(SimtAttendChosen, matches_fp64_on_random_problems) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(54);
  for (int trial = 0; trial < 120; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const ChosenCase c(problem, random_policy(random, problem), random());
    const Results got = attend_chosen(c, {c.all()});
    for (int sample = 0; sample < 40; ++sample) {
      const auto row = std::uniform_int_distribution<std::int64_t>(0, problem.tokens - 1)(random);
      const auto head = std::uniform_int_distribution<std::int64_t>(0, problem.heads - 1)(random);
      const auto pair = static_cast<std::size_t>(row * problem.heads + head);
      const ExactRow exact = c.exact(row, head);
      ASSERT_NEAR(got.lse[pair], exact.lse, kBound) << name_of_case(problem) << " row " << row << " head " << head;
      for (std::size_t k = 0; k < exact.out.size(); ++k) {
        ASSERT_NEAR(got.out[pair * exact.out.size() + k], exact.out[k], kBound)
            << name_of_case(problem) << " row " << row << " head " << head << " channel " << k << ", chosen "
            << c.chosen(row, head / problem.group());
      }
    }
  }
}

TEST(SimtAttendChosen, a_row_does_not_depend_on_the_range_and_none_is_touched_without_a_choice) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(55);
  for (int trial = 0; trial < 20; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const ChosenCase c(problem, random_policy(random, problem), random());
    std::vector<RowRange> ranges;
    for (std::int64_t begin = 0; begin < problem.tokens; begin = ranges.back().end) {
      ranges.push_back({begin, std::uniform_int_distribution<std::int64_t>(begin + 1, problem.tokens)(random)});
    }
    const Results want = attend_chosen(c, {c.all()}), got = attend_chosen(c, ranges);
    ASSERT_TRUE(same_bits(got.out, want.out) && same_bits(got.lse, want.lse)) << name_of_case(problem);
    for (std::int64_t row = 0; row < problem.tokens; ++row) {
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        const auto pair = static_cast<std::size_t>(row * problem.heads + head);
        if (c.topk > 0 && c.chosen(row, head / problem.group()) > 0) continue;
        const auto dims = static_cast<std::size_t>(problem.head_dim);
        ASSERT_EQ(std::memcmp(&got.out[pair * dims], &c.window.out[pair * dims], dims * sizeof(float)), 0);
        ASSERT_EQ(got.lse[pair], c.window.lse[pair]);
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
