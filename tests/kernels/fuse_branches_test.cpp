#include "kernels/fuse_branches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

// Rows of one head of two components.
struct Rows {
  std::vector<float> out, lse;
  TensorView<float, 3> out_view() { return {out.data(), {std::ssize(lse), 1, 2}}; }
  TensorView<float, 2> lse_view() { return {lse.data(), {std::ssize(lse), 1}}; }
};

GlobalRows global_rows(const std::vector<std::int64_t>& rows, const std::vector<float>& out,
                       const std::vector<float>& lse) {
  return {rows, {out.data(), {std::ssize(rows), 1, 2}}, {lse.data(), {std::ssize(rows), 1}}};
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6f) << "at " << i;
}

// (3, 4) has a root mean square of 5 / sqrt 2, (1, 1) one of 1.
TEST(FuseBranches, only_selected_rows_are_mixed_by_hand) {
  Rows rows{{3, 4, 3, 4}, {1, 2}};
  fuse_branches(rows.out_view(), rows.lse_view(), global_rows({1}, {7, 7}, {9}), std::vector<float>{0.9f, 0.25f}, {},
                1);
  const float third = 3 * std::sqrt(2.0f) / 5, fourth = 4 * std::sqrt(2.0f) / 5;
  expect_near(rows.out, {third, fourth, 0.75f * third + 0.25f, 0.75f * fourth + 0.25f});
  expect_near(rows.lse, {1, 9});
}

TEST(FuseBranches, each_branch_has_its_weights_by_hand) {
  Rows rows{{5, 5}, {0}};
  const std::vector<float> local = {2, 3}, global = {10, -20};
  fuse_branches(rows.out_view(), rows.lse_view(), global_rows({0}, {4, -4}, {0}), std::vector<float>{0.5f},
                {local, global}, 1);
  expect_near(rows.out, {1.0f + 5.0f, 1.5f + 10.0f});
}

// A row of nothing but zeros, and one so small that 1e-6 is all of its mean square: 1e-6 / 1e-3.
TEST(FuseBranches, small_rows_stay_small_by_hand) {
  Rows rows{{0, 0, 1e-6f, 0}, {kMinusInfinity, 0}};
  fuse_branches(rows.out_view(), rows.lse_view(), global_rows({}, {}, {}), std::vector<float>{0.9f, 0.9f}, {}, 1);
  expect_near(rows.out, {0, 0, 1e-3f, 0});
  EXPECT_EQ(rows.lse[0], kMinusInfinity);
}

// Mixing in fp64 of any shape, whatever the threads.
TEST(FuseBranches, random_rows_match_fp64) {
  std::mt19937_64 random(1);
  for (const std::int64_t head_dim : {1, 32, 64, 80, 96, 128, 256}) {
    const std::int64_t rows = 37, heads = 3;
    const auto width = static_cast<std::size_t>(heads * head_dim);
    const std::vector<float> local = normal_floats(random, rows * heads * head_dim);
    std::vector<std::int64_t> selected;
    std::vector<float> gates;
    for (std::int64_t row = 0; row < rows; ++row) {
      gates.push_back(static_cast<float>(random() % 1000 + 1) / 1002.0f);
      if (random() % 2 == 0) selected.push_back(row);
    }
    const std::vector<float> global = normal_floats(random, std::ssize(selected) * heads * head_dim);
    const std::vector<float> global_lse = normal_floats(random, std::ssize(selected) * heads);
    const std::vector<float> norm_l = normal_floats(random, head_dim), norm_g = normal_floats(random, head_dim);
    std::vector<float> out = local, lse(static_cast<std::size_t>(rows * heads), 0.5f);
    fuse_branches({out.data(), {rows, heads, head_dim}}, {lse.data(), {rows, heads}},
                  {selected,
                   {global.data(), {std::ssize(selected), heads, head_dim}},
                   {global_lse.data(), {std::ssize(selected), heads}}},
                  gates, {norm_l, norm_g}, 2);
    const auto normalised = [&](const std::vector<float>& from, std::size_t row, std::size_t i,
                                const std::vector<float>& weights) {
      const auto d = static_cast<std::size_t>(head_dim);
      const std::size_t head = row * width + i / d * d;
      double squares = 0.0;
      for (std::size_t k = 0; k < d; ++k) squares += double{from[head + k]} * double{from[head + k]};
      return double{from[row * width + i]} / std::sqrt(squares / static_cast<double>(d) + 1e-6) *
             double{weights[i % d]};
    };
    std::size_t next = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      const bool mixed = next < selected.size() && selected[next] == static_cast<std::int64_t>(row);
      for (std::size_t i = 0; i < width; ++i) {
        const double alone = normalised(local, row, i, norm_l);
        const double gate = gates[row];
        const double want = mixed ? (1.0 - gate) * alone + gate * normalised(global, next, i, norm_g) : alone;
        ASSERT_NEAR(out[row * width + i], want, 1e-5) << "d " << head_dim << " row " << row;
      }
      for (std::size_t head = 0; head < 3; ++head) {
        ASSERT_EQ(lse[row * 3 + head], mixed ? global_lse[next * 3 + head] : 0.5f);
      }
      next += mixed ? 1 : 0;
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels
