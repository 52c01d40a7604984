// Merges of partial results, and the mixture weights that precede attention over chosen chunks.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/cuda/attend.h"
#include "kernels/merge_partials.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {
namespace {

struct Partial {
  std::int64_t rows, heads, head_dim;
  std::vector<float> out;
  std::vector<float> lse;

  // Every fifth (row, head) is empty, with NaN for a result.
  static Partial random(std::mt19937_64& random, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
    Partial partial{rows, heads, head_dim, normal_floats(random, rows * heads * head_dim),
                    normal_floats(random, rows * heads)};
    for (std::size_t pair = 0; pair < partial.lse.size(); ++pair) {
      partial.lse[pair] *= 30.0f;
      if (random() % 5 != 0) continue;
      partial.lse[pair] = kMinusInfinity;
      std::fill_n(partial.out.begin() + static_cast<std::int64_t>(pair) * head_dim, head_dim, kNaN);
    }
    return partial;
  }
  TensorView<float, 3> out_view() { return {out.data(), {rows, heads, head_dim}}; }
  TensorView<float, 2> lse_view() { return {lse.data(), {rows, heads}}; }
  TensorView<const float, 3> out_view() const { return {out.data(), {rows, heads, head_dim}}; }
  TensorView<const float, 2> lse_view() const { return {lse.data(), {rows, heads}}; }
};

Partial merged_on_device(const Partial& into, const Partial& other) {
  const ringmark::cuda::Stream stream;
  const auto out = upload(into.out, stream), lse = upload(into.lse, stream);
  const auto other_out = upload(other.out, stream), other_lse = upload(other.lse, stream);
  merge_partials(into.rows, into.heads, into.head_dim, out.data(), lse.data(), other_out.data(), other_lse.data(),
                 stream);
  return {into.rows, into.heads, into.head_dim, download(out, stream), download(lse, stream)};
}

float unit_of(float value) { return std::nextafter(std::fabs(value), INFINITY) - std::fabs(value); }

TEST(CudaMergePartials, gives_the_cpu_s_bits_and_its_lse_to_a_unit) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(41);
  for (const std::int64_t head_dim : {1, 2, 4, 7, 64, 65, 80, 96, 128, 192, 255, 256}) {
    for (const std::int64_t rows : {1, 3, 200}) {
      Partial into = Partial::random(random, rows, 3, head_dim);
      const Partial other = Partial::random(random, rows, 3, head_dim);
      const Partial got = merged_on_device(into, other);
      const std::vector<float> before = into.lse;
      kernels::merge_partials(into.out_view(), into.lse_view(), other.out_view(), other.lse_view());
      for (std::size_t i = 0; i < into.out.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got.out[i]), std::bit_cast<std::uint32_t>(into.out[i]))
            << "pair " << i / static_cast<std::size_t>(head_dim) << " of head_dim " << head_dim << ": got "
            << got.out[i] << ", want " << into.out[i];
      }
      for (std::size_t i = 0; i < into.lse.size(); ++i) {
        if (got.lse[i] == into.lse[i]) continue;
        const float largest_term = std::max(std::fabs(before[i]), std::fabs(into.lse[i]));
        ASSERT_LE(std::fabs(got.lse[i] - into.lse[i]), unit_of(largest_term)) << "pair " << i;
      }
    }
  }
}

struct Weights {
  LayerShape shape;
  std::int64_t rows;
  std::vector<float> scores;  // [rows, H, topk]
  std::vector<float> lse;
  std::vector<float> window;

  Weights weighed(RowRange range) const {
    const ringmark::cuda::Stream stream;
    const auto device_scores = upload(scores, stream), device_lse = upload(lse, stream),
               device_window = upload(window, stream);
    weigh_chunks(shape, range, device_scores.data(), device_lse.data(), device_window.data(), stream);
    return {shape, rows, download(device_scores, stream), download(device_lse, stream),
            download(device_window, stream)};
  }
};

Weights random_weights(std::mt19937_64& random, std::int32_t topk) {
  Weights w;
  w.shape.heads = 3;
  w.shape.topk = topk;
  w.rows = 101;
  w.scores = normal_floats(random, w.rows * w.shape.heads * topk);
  w.lse = normal_floats(random, w.rows * w.shape.heads);
  w.window.assign(w.lse.size(), kNaN);
  for (std::size_t pair = 0; pair < w.lse.size(); ++pair) {
    const auto slots = static_cast<std::size_t>(topk);
    const std::size_t used = random() % 3 == 0 ? 0 : random() % 2 == 0 ? slots : random() % (slots + 1);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      float& score = w.scores[pair * slots + slot];
      score = slot < used ? 100.0f + 5.0f * score : kMinusInfinity;
    }
    w.lse[pair] = random() % 4 == 0 ? kMinusInfinity : 100.0f + 5.0f * w.lse[pair];
  }
  return w;
}

void expect_weighed(const Weights& before, const Weights& after, std::size_t pair) {
  const auto slots = static_cast<std::size_t>(before.shape.topk);
  const float* scores = before.scores.data() + pair * slots;
  double sum = std::exp(double{before.lse[pair]});
  bool chose = false;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    sum += std::exp(double{scores[slot]});
    chose = chose || scores[slot] != kMinusInfinity;
  }
  if (!chose) {
    EXPECT_EQ(after.window[pair], 1.0f) << "pair " << pair;
    EXPECT_EQ(after.lse[pair], before.lse[pair]) << "pair " << pair;
    sum = 0.0;
  } else {
    EXPECT_NEAR(after.lse[pair], std::log(sum), 2 * unit_of(100.0f)) << "pair " << pair;
    EXPECT_NEAR(after.window[pair], std::exp(double{before.lse[pair]}) / sum, 5e-7) << "pair " << pair;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const float got = after.scores[pair * slots + slot];
    if (scores[slot] == kMinusInfinity) {
      EXPECT_EQ(got, kMinusInfinity) << "pair " << pair << " slot " << slot;
    } else {
      EXPECT_NEAR(std::exp(double{got}), std::exp(double{scores[slot]}) / sum, 5e-7)
          << "pair " << pair << " slot " << slot;
    }
  }
}

TEST(CudaWeighChunks, are_the_softmax_of_scores_and_window) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(42);
  for (const std::int32_t topk : {1, 2, 3, 4, 8, 12, 16, 17, 20, 32, 48, 64, 100, 128, 132, 500}) {
    const Weights before = random_weights(random, topk);
    const Weights after = before.weighed({0, before.rows});
    for (std::size_t pair = 0; pair < before.lse.size(); ++pair) expect_weighed(before, after, pair);
    ASSERT_FALSE(HasFailure()) << "topk " << topk;
  }
}

TEST(CudaWeighChunks, leave_rows_out_of_range_alone) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(43);
  for (const std::int32_t topk : {5, 16}) {
    const Weights before = random_weights(random, topk);
    const Weights all = before.weighed({0, before.rows}), part = before.weighed({20, 60});
    for (std::size_t i = 0; i < before.scores.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) / topk / before.shape.heads;
      EXPECT_EQ(part.scores[i], (20 <= row && row < 60 ? all : before).scores[i]) << "row " << row;
    }
    for (std::size_t pair = 0; pair < before.lse.size(); ++pair) {
      const std::int64_t row = static_cast<std::int64_t>(pair) / before.shape.heads;
      EXPECT_EQ(part.lse[pair], (20 <= row && row < 60 ? all : before).lse[pair]) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
