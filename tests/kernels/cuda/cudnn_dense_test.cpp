#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/cudnn/attend_dense.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels::cuda::cudnn {
namespace {

using ringmark::cuda::Buffer;

AttentionProblem problem_of(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                            std::int64_t head_dim) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.dtype = dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return problem;
}

LayerShape shape_of(const AttentionProblem& problem) {
  LayerShape shape;
  shape.heads = static_cast<std::int32_t>(problem.heads);
  shape.kv_heads = static_cast<std::int32_t>(problem.kv_heads);
  shape.group = static_cast<std::int32_t>(problem.group());
  shape.head_dim = static_cast<std::int32_t>(problem.head_dim);
  shape.dtype = problem.dtype;
  shape.scale = problem.scale;
  return shape;
}

// The output is rounded to the dtype, and so is every weight before it: of `keys` random values the second error is
// about 1 / sqrt(keys) of that of one.
double bound_of(DType dtype, double want, std::int64_t keys) {
  const double rounding = dtype == DType::kBfloat16 ? 0x1p-9 : 0x1p-12;
  return rounding * (2.0 * std::abs(want) + 14.0 / std::sqrt(static_cast<double>(keys)));
}

struct DenseResult {
  std::vector<float> out;
  std::vector<float> lse;  // empty when not asked for
};

// Output and lse are poisoned with NaN before the call.
DenseResult attend(const AttentionCase& c, bool with_lse, std::int64_t kv_heads_at_once) {
  const ringmark::cuda::Stream stream;
  const auto upload = [&](const RowsView& rows) {
    Buffer<std::byte> buffer(rows.bytes());
    buffer.upload(rows.data, rows.bytes(), stream);
    return buffer;
  };
  const Buffer<std::byte> q = upload(c.queries.view()), k = upload(c.keys.view()), v = upload(c.values.view());
  Buffer<std::byte> out(q.size());
  Buffer<float> lse(with_lse ? c.problem.tokens * c.problem.heads : 0);
  out.fill_bytes(0xFF, stream);
  lse.fill_bytes(0xFF, stream);

  DenseAttention dense(shape_of(c.problem), c.problem.tokens, with_lse, kv_heads_at_once);
  dense.attend({q.data(), k.data(), v.data(), out.data(), lse.data()}, stream);

  std::vector<std::byte> bytes(static_cast<std::size_t>(out.size()));
  DenseResult result{std::vector<float>(static_cast<std::size_t>(out.size() / 2)),
                     std::vector<float>(static_cast<std::size_t>(lse.size()))};
  out.download(bytes.data(), out.size(), stream);
  lse.download(result.lse.data(), lse.size(), stream);
  stream.wait();
  widen(bytes.data(), c.problem.dtype, out.size() / 2, result.out.data());
  return result;
}

// First and last rows, tile edges and some in between.
std::vector<std::int64_t> sampled_rows(std::int64_t tokens) {
  std::vector<std::int64_t> rows;
  for (const std::int64_t row : {0, 1, 63, 64, 127, 128, 191, 255, 256}) rows.push_back(row);
  for (std::int64_t part = 1; part <= 8; ++part) rows.push_back(tokens * part / 8 - 1);
  std::erase_if(rows, [&](std::int64_t row) { return row < 0 || row >= tokens; });
  return rows;
}

void expect_exact(const AttentionCase& c, const DenseResult& result) {
  std::vector<TokenId> seen;
  int reported = 0;
  std::vector<std::int64_t> rows = sampled_rows(c.problem.tokens);
  std::sort(rows.begin(), rows.end());
  for (const std::int64_t row : rows) {
    while (static_cast<std::int64_t>(seen.size()) <= row) seen.emplace_back(static_cast<std::int64_t>(seen.size()));
    for (std::int64_t head = 0; head < c.problem.heads; ++head) {
      const ExactRow want = attend_exactly(c, row, head, seen);
      const auto at = static_cast<std::size_t>(row * c.problem.heads + head);
      if (!result.lse.empty() && !(std::abs(result.lse[at] - want.lse) < 1e-4 * (1.0 + std::abs(want.lse)))) {
        ADD_FAILURE() << "lse of row " << row << " head " << head << ": " << result.lse[at] << ", want " << want.lse;
        ++reported;
      }
      for (std::size_t x = 0; x < want.out.size(); ++x) {
        const double got = result.out[at * want.out.size() + x];
        if (std::abs(got - want.out[x]) < bound_of(c.problem.dtype, want.out[x], row + 1)) continue;
        ADD_FAILURE() << "row " << row << " head " << head << " channel " << x << ": " << got << ", want "
                      << want.out[x];
        ++reported;
      }
      if (reported >= 8) return;
    }
  }
}

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class CudnnDense : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(CudnnDense, sampled_rows_are_exact) {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const AttentionProblem& problem :
         {problem_of(dtype, 1, 4, 2, 64), problem_of(dtype, 2, 2, 2, 128), problem_of(dtype, 63, 8, 1, 128),
          problem_of(dtype, 129, 16, 1, 128), problem_of(dtype, 777, 6, 3, 80), problem_of(dtype, 1000, 4, 1, 64),
          problem_of(dtype, 513, 2, 2, 256), problem_of(dtype, 300, 3, 3, 8), problem_of(dtype, 1024, 8, 4, 192),
          problem_of(dtype, 4097, 4, 1, 128)}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " tokens " << problem.tokens << " heads " << problem.heads
                                      << "/" << problem.kv_heads << " head_dim " << problem.head_dim);
      ASSERT_TRUE(DenseAttention::supports(shape_of(problem)));
      const AttentionCase c(problem, AttentionPolicy{}, seed++);
      expect_exact(c, attend(c, true, 0));
    }
  }
}

TEST_F(CudnnDense, lse_and_the_division_into_calls_change_nothing) {
  const AttentionCase c(problem_of(DType::kBfloat16, 700, 8, 4, 128), AttentionPolicy{}, 7);
  const DenseResult whole = attend(c, true, 4);
  for (const std::int64_t at_once : {1, 2}) {
    const DenseResult split = attend(c, true, at_once);
    EXPECT_EQ(split.out, whole.out);
    EXPECT_EQ(split.lse, whole.lse);
  }
  EXPECT_EQ(attend(c, false, 0).out, whole.out);
}

TEST_F(CudnnDense, calls_divide_where_32_bit_offsets_would_wrap) {
  const LayerShape shape = shape_of(problem_of(DType::kBfloat16, 1, 32, 8, 128));
  EXPECT_EQ(DenseAttention(shape, 1000, false).kv_heads_at_once(), 8);
  EXPECT_EQ(DenseAttention(shape, std::int64_t{1} << 19, false).kv_heads_at_once(), 4);
  EXPECT_EQ(DenseAttention(shape, std::int64_t{1} << 20, false).kv_heads_at_once(), 2);
  EXPECT_FALSE(DenseAttention::supports(shape_of(problem_of(DType::kFloat32, 1, 1, 1, 64))));
  EXPECT_FALSE(DenseAttention::supports(shape_of(problem_of(DType::kBfloat16, 1, 1, 1, 65))));
}

// Rows of one kv head, cheap to make: uniform in [-1.75, 1.75] in steps of 1/64, exact in bf16.
std::vector<std::uint16_t> cheap_rows(std::int64_t count, std::uint64_t state) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto step = static_cast<float>(static_cast<std::int64_t>((state >> 33) % 225) - 112);
    value = float_to_bfloat16(step / 64.0f);
  }
  return values;
}

// The last kv head of a layer whose q and out hold more than 2^31 elements.
TEST_F(CudnnDense, offsets_are_64_bit) {
  constexpr std::int64_t kTokens = 540001, kHeads = 32, kKvHeads = 8, kGroup = 4, kDim = 128, kKvHead = 7;
  std::size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  const std::int64_t needed = kTokens * (2 * kHeads + 2 * kKvHeads) * kDim * 2;
  if (static_cast<std::int64_t>(free_bytes) < needed + (std::int64_t{1} << 30)) GTEST_SKIP() << "not enough GPU memory";
  const ringmark::cuda::Stream stream;
  const auto q = cheap_rows(kTokens * kGroup * kDim, 1), k = cheap_rows(kTokens * kDim, 2);
  const auto v = cheap_rows(kTokens * kDim, 3);
  // Columns of other heads hold NaN.
  const auto place = [&](const std::vector<std::uint16_t>& rows, std::int64_t row_heads, std::int64_t heads) {
    Buffer<std::byte> buffer(kTokens * row_heads * kDim * 2);
    buffer.fill_bytes(0xFF, stream);
    const auto row_bytes = static_cast<std::size_t>(row_heads * kDim * 2);
    const auto part = static_cast<std::size_t>(heads * kDim * 2);
    ringmark::cuda::check(cudaMemcpy2DAsync(buffer.data() + row_bytes - part, row_bytes, rows.data(), part, part,
                                            static_cast<std::size_t>(kTokens), cudaMemcpyHostToDevice, stream),
                          "place rows");
    return buffer;
  };
  const Buffer<std::byte> q_rows = place(q, kHeads, kGroup), k_rows = place(k, kKvHeads, 1),
                          v_rows = place(v, kKvHeads, 1);
  Buffer<std::byte> out(q_rows.size());
  Buffer<float> lse(kTokens * kHeads);
  out.fill_bytes(0xFF, stream);
  lse.fill_bytes(0xFF, stream);
  const AttentionProblem problem = problem_of(DType::kBfloat16, kTokens, kHeads, kKvHeads, kDim);
  DenseAttention dense(shape_of(problem), kTokens, true, 1);
  dense.attend({q_rows.data(), k_rows.data(), v_rows.data(), out.data(), lse.data()}, {kKvHead, kKvHead + 1}, stream);
  stream.wait();

  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1000}, std::int64_t{524287}, std::int64_t{524288},
                                 std::int64_t{530123}, kTokens - 1}) {
    std::vector<std::uint16_t> got(kHeads * kDim);
    std::vector<float> got_lse(kHeads);
    out.download(reinterpret_cast<std::byte*>(got.data()), kHeads * kDim * 2, stream, row * kHeads * kDim * 2);
    lse.download(got_lse.data(), kHeads, stream, row * kHeads);
    stream.wait();
    for (std::int64_t head = 0; head < kHeads - kGroup; ++head) {
      ASSERT_EQ(got[static_cast<std::size_t>(head * kDim)], 0xFFFF) << "row " << row << " head " << head << " written";
    }
    for (std::int64_t member = 0; member < kGroup; ++member) {
      const std::uint16_t* query = q.data() + (row * kGroup + member) * kDim;
      std::vector<double> want(kDim, 0.0);
      double sum = 0.0;
      for (std::int64_t token = 0; token <= row; ++token) {  // exponents stay below 35: no maximum needed
        float score = 0.0f;                                  // multiples of 2^-12: exact
        for (std::int64_t x = 0; x < kDim; ++x) {
          score += bfloat16_to_float(query[x]) * bfloat16_to_float(k[static_cast<std::size_t>(token * kDim + x)]);
        }
        const double weight = std::exp(double{problem.scale} * double{score});
        sum += weight;
        for (std::int64_t x = 0; x < kDim; ++x) {
          want[static_cast<std::size_t>(x)] +=
              weight * double{bfloat16_to_float(v[static_cast<std::size_t>(token * kDim + x)])};
        }
      }
      const std::int64_t head = kKvHead * kGroup + member;
      EXPECT_NEAR(got_lse[static_cast<std::size_t>(head)], std::log(sum), 1e-3) << "row " << row << " head " << head;
      for (std::int64_t x = 0; x < kDim; ++x) {
        const double exact = want[static_cast<std::size_t>(x)] / sum;
        const double value = double{bfloat16_to_float(got[static_cast<std::size_t>(head * kDim + x)])};
        ASSERT_NEAR(value, exact, bound_of(DType::kBfloat16, exact, row + 1))
            << "row " << row << " head " << head << " channel " << x;
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda::cudnn
