#include "kernels/calibrate_queries.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/isa.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {
namespace {

// Weights and hidden states in storage precision, and what they hold.
struct Case {
  Case(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, std::int64_t model_dim,
       std::int64_t low_rank, std::uint64_t seed)
      : random(seed),
        rows_(rows),
        hidden(tensor(dtype, rows, model_dim)),
        q(tensor(dtype, heads * head_dim, model_dim)),
        up(tensor(dtype, heads * head_dim, low_rank)),
        down(tensor(dtype, low_rank, model_dim)),
        norm(tensor(dtype, 1, head_dim)),
        weights{dtype,         heads,          head_dim,         model_dim,       low_rank,
                q.view().data, up.view().data, down.view().data, norm.view().data} {}

  StoredTensor tensor(DType dtype, std::int64_t count, std::int64_t width) {
    return {dtype, count, 1, width, normal_floats(random, count * width)};
  }

  std::vector<float> calibrate(std::int64_t first, std::int64_t count, int threads) const {
    const RowsView part = hidden.view().slice(first, first + count);
    const std::int64_t elements = count * weights.heads * weights.head_dim;
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements * size_of(weights.dtype)));
    calibrate_queries(weights, {part.data, static_cast<std::size_t>(part.bytes())}, count, bytes, threads);
    std::vector<float> values(static_cast<std::size_t>(elements));
    widen(bytes.data(), weights.dtype, elements, values.data());
    return values;
  }

  // q~ of one row and head in fp64.
  std::vector<double> exact(std::int64_t row, std::int64_t head) const {
    const std::vector<float> h = hidden.row(row, 0);
    std::vector<double> low;
    for (std::int64_t r = 0; r < weights.low_rank; ++r) low.push_back(dot(down.row(r, 0), h));
    std::vector<double> x;
    double squares = 0.0;
    for (std::int64_t i = 0; i < weights.head_dim; ++i) {
      x.push_back(dot(q.row(head * weights.head_dim + i, 0), h));
      const std::vector<float> of_up = up.row(head * weights.head_dim + i, 0);
      for (std::size_t r = 0; r < low.size(); ++r) x.back() += double{of_up[r]} * low[r];
      squares += x.back() * x.back();
    }
    const double root = std::sqrt(squares / static_cast<double>(weights.head_dim) + 1e-6);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= double{norm.row(0, 0)[i]} / root;
    return x;
  }

  std::mt19937_64 random;
  std::int64_t rows_;
  StoredTensor hidden, q, up, down, norm;
  Calibration weights;
};

TEST(CalibrateQueries, match_fp64) {
  std::mt19937_64 random(3);
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const auto dtype = pick<DType>(random, {DType::kFloat32, DType::kBfloat16, DType::kFloat16});
    const Case c(dtype, pick<std::int64_t>(random, {1, 2, 33}), pick<std::int64_t>(random, {1, 3}),
                 pick<std::int64_t>(random, {1, 32, 64, 80, 96, 128, 256}),
                 pick<std::int64_t>(random, {1, 24, 129, 256}), pick<std::int64_t>(random, {1, 7, 33, 64}), seed);
    const std::vector<float> got = c.calibrate(0, c.rows_, 2);
    // Values are a few units large; storage rounds them once.
    const double bound = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
    auto next = got.begin();
    for (std::int64_t row = 0; row < c.rows_; ++row) {
      for (std::int64_t head = 0; head < c.weights.heads; ++head) {
        for (const double want : c.exact(row, head)) {
          ASSERT_NEAR(*next++, want, bound * std::max(1.0, std::abs(want))) << "seed " << seed << " row " << row;
        }
      }
    }
  }
}

TEST(CalibrateQueries, a_row_depends_on_itself_and_on_no_instruction_set) {
  const Case c(DType::kFloat32, 70, 3, 80, 129, 33, 5);
  const std::vector<float> all = c.calibrate(0, 70, 2);
  const std::int64_t width = 3 * 80;
  for (const std::int64_t row : {0, 13, 69}) {
    EXPECT_TRUE(same_bits(c.calibrate(row, 1, 1), {all.begin() + row * width, all.begin() + (row + 1) * width}));
  }
  const cpu::Isa before = cpu::active_isa();
  cpu::force_isa(cpu::Isa::kAvx2);
  EXPECT_TRUE(same_bits(c.calibrate(0, 70, 1), all));
  cpu::force_isa(before);
}

std::vector<float> by_hand(std::vector<float> hidden, std::vector<float> q, std::vector<float> up,
                           std::vector<float> down, std::vector<float> norm) {
  const auto model_dim = std::ssize(hidden);
  const auto head_dim = std::ssize(norm);
  const Calibration weights{DType::kFloat32,
                            std::ssize(q) / model_dim / head_dim,
                            head_dim,
                            model_dim,
                            std::ssize(down) / model_dim,
                            std::as_bytes(std::span(q)).data(),
                            std::as_bytes(std::span(up)).data(),
                            std::as_bytes(std::span(down)).data(),
                            std::as_bytes(std::span(norm)).data()};
  std::vector<float> out(static_cast<std::size_t>(weights.heads * head_dim));
  calibrate_queries(weights, std::as_bytes(std::span(hidden)), 1, std::as_writable_bytes(std::span(out)), 1);
  return out;
}

// x = (3, 4): its root mean square is 5 / sqrt 2.
TEST(CalibrateQueries, by_hand_without_a_low_rank_part) {
  const auto out = by_hand({1.0f}, {3.0f, 4.0f}, {0.0f, 0.0f}, {1.0f}, {1.0f, 2.0f});
  EXPECT_NEAR(out[0], 3.0 * std::sqrt(2.0) / 5.0, 1e-6);
  EXPECT_NEAR(out[1], 2.0 * 4.0 * std::sqrt(2.0) / 5.0, 1e-6);
}

// W_down h = 1 + 2 = 3; W_up adds (3, -3) to (0, 7) before the norm: (3, 4) again.
TEST(CalibrateQueries, by_hand_the_sum_is_taken_before_the_norm) {
  const auto out = by_hand({1.0f, 2.0f}, {0.0f, 0.0f, 3.0f, 2.0f}, {1.0f, -1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f});
  EXPECT_NEAR(out[0], 3.0 * std::sqrt(2.0) / 5.0, 1e-6);
  EXPECT_NEAR(out[1], 4.0 * std::sqrt(2.0) / 5.0, 1e-6);
}

// Two heads are normed apart: (1, 1) and (10, 0). A state of zeros stays one.
TEST(CalibrateQueries, by_hand_heads_are_normed_apart) {
  const auto out = by_hand({1.0f}, {1.0f, 1.0f, 10.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}, {1.0f}, {1.0f, 1.0f});
  EXPECT_NEAR(out[0], 1.0, 1e-6);
  EXPECT_NEAR(out[1], 1.0, 1e-6);
  EXPECT_NEAR(out[2], std::sqrt(2.0), 1e-6);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_EQ(by_hand({0.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f}, {1.0f, 1.0f}), (std::vector<float>{0.0f, 0.0f}));
}

}  // namespace
}  // namespace ringmark::kernels
