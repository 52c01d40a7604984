#include "runtime/query_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "kernels/calibrate_queries.h"
#include "runtime/layer_tensors.h"

namespace ringmark::runtime {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

constexpr const char* kHidden = "hidden";
constexpr std::int64_t kTileRows = 256;  // a packed panel of weights is used that often

// The extents; `down` and `hidden` have two dimensions.
kernels::Calibration shape_of(const SafetensorsFile& file, const AttentionProblem& problem) {
  kernels::Calibration shape;
  shape.dtype = problem.dtype;
  shape.heads = problem.heads;
  shape.head_dim = problem.head_dim;
  shape.model_dim = file.tensor(kHidden).shape[1];
  shape.low_rank = file.tensor("calibration.down").shape[0];
  return shape;
}

const StoredTensor& matrix(const SafetensorsFile& file, std::string_view name) {
  const StoredTensor& tensor = file.tensor(name);
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1) {
    fail_in(file, fmt::format("tensor {} has shape {}, which is no matrix", name, shape_text(tensor.shape)));
  }
  return tensor;
}

std::vector<std::byte> read_weights(const SafetensorsFile& file, std::string_view name, DType dtype) {
  const StoredTensor& tensor = file.tensor(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.shape[0] * tensor.row_bytes()));
  file.read_rows(tensor, {0, tensor.shape[0]}, bytes);
  const std::int64_t row = first_nonfinite_row(bytes, dtype, tensor.row_bytes() / size_of(dtype));
  if (row >= 0) fail_in(file, fmt::format("tensor {} holds NaN or infinity at row {}", name, row));
  return bytes;
}

}  // namespace

void check_calibration(const SafetensorsFile& file, const AttentionProblem& problem) {
  if (file.header().find("landmark_q") != nullptr) {
    fail_in(file, "tensor landmark_q holds retrieval queries, which --calibrate would make of hidden states");
  }
  const std::string& dtype = file.tensor("q").dtype;
  const std::int64_t model_dim = matrix(file, kHidden).shape[1];
  const std::int64_t low_rank = matrix(file, "calibration.down").shape[0];
  const std::int64_t width = problem.heads * problem.head_dim;
  expect_tensor(file, file.tensor(kHidden), {problem.tokens, model_dim}, dtype);
  expect_tensor(file, file.tensor("calibration.q"), {width, model_dim}, dtype);
  expect_tensor(file, file.tensor("calibration.up"), {width, low_rank}, dtype);
  expect_tensor(file, file.tensor("calibration.down"), {low_rank, model_dim}, dtype);
  expect_tensor(file, file.tensor("calibration.norm"), {problem.head_dim}, dtype);
}

std::int64_t calibration_bytes(const SafetensorsFile& file, const AttentionProblem& problem, int threads) {
  const kernels::Calibration shape = shape_of(file, problem);
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t weights =
      width * (shape.model_dim + shape.low_rank) + shape.low_rank * shape.model_dim + shape.head_dim;
  return (weights + kTileRows * shape.model_dim) * size_of(problem.dtype) +
         kernels::calibration_bytes(shape, kTileRows, threads);
}

void calibrate_retrieval_queries(const SafetensorsFile& file, const AttentionProblem& problem,
                                 std::span<const RowRange> tokens, LayerShard& shard, int threads) {
  kernels::Calibration weights = shape_of(file, problem);
  const auto q = read_weights(file, "calibration.q", problem.dtype);
  const auto up = read_weights(file, "calibration.up", problem.dtype);
  const auto down = read_weights(file, "calibration.down", problem.dtype);
  const auto norm = read_weights(file, "calibration.norm", problem.dtype);
  weights.q = q.data();
  weights.up = up.data();
  weights.down = down.data();
  weights.norm = norm.data();
  std::span<std::byte> out(shard.retrieval_q());
  const StoredTensor& hidden = file.tensor(kHidden);
  for (const RowRange& run : tokens) {
    for (std::int64_t first = run.begin; first < run.end; first += kTileRows) {
      const RowRange rows{first, std::min(run.end, first + kTileRows)};
      std::vector<std::byte> states(static_cast<std::size_t>(rows.size() * hidden.row_bytes()));
      file.read_rows(hidden, rows, states);
      const std::int64_t bad = first_nonfinite_row(states, problem.dtype, weights.model_dim);
      if (bad >= 0) fail_in(file, fmt::format("tensor {} holds NaN or infinity at token {}", kHidden, first + bad));
      const auto bytes =
          static_cast<std::size_t>(rows.size() * problem.heads * problem.head_dim * size_of(problem.dtype));
      kernels::calibrate_queries(weights, states, rows.size(), out.first(bytes), threads);
      out = out.subspan(bytes);
    }
  }
}

}  // namespace ringmark::runtime
