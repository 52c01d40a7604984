#include "runtime/gradient_files.h"

#include <fmt/format.h>

#include "runtime/layer_output.h"
#include "runtime/layer_tensors.h"
#include "runtime/shared_output.h"

namespace ringmark::runtime {
namespace {

constexpr const char* kOutGradient = "do";

SharedFile describe(const GradientOutput& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  const std::vector<std::int64_t> queries = {problem.tokens, problem.heads, problem.head_dim};
  const std::vector<std::int64_t> keys = {problem.tokens, problem.kv_heads, problem.head_dim};
  SharedFile shared{file.path, {{"dq", "F32", queries}}, policy_metadata(problem, policy)};
  shared.tensors.push_back({"dk", "F32", keys});
  shared.tensors.push_back({"dv", "F32", keys});
  if (file.with_landmark_queries) shared.tensors.push_back({"dlandmark_q", "F32", queries});
  return shared;
}

}  // namespace

GradientFile::GradientFile(const std::string& path, const AttentionProblem& problem) : file_(path) {
  const kvstore::StoredTensor& tensor = file_.tensor(kOutGradient);
  expect_shape(file_, tensor, {problem.tokens, problem.heads, problem.head_dim});
  dtype_of(file_, tensor);
}

std::vector<float> GradientFile::load(const partition::Layout& layout, RankId rank) const {
  const kvstore::StoredTensor& tensor = file_.tensor(kOutGradient);
  const DType dtype = dtype_of(file_, tensor);
  const std::int64_t rows = layout.token_count(rank);
  const std::int64_t width = tensor.shape[1] * tensor.shape[2];
  const std::vector<RowRange> runs = rows_of_file(layout, rank, rows);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * width * size_of(dtype)));
  read_runs(file_, tensor, runs, bytes);
  if (const std::int64_t row = first_nonfinite_row(bytes, dtype, width); row >= 0) {
    fail_in(file_, fmt::format("tensor {} holds NaN or infinity at token {}", kOutGradient, row_of(runs, row)));
  }
  std::vector<float> gradient(static_cast<std::size_t>(rows * width));
  widen(bytes.data(), dtype, rows * width, gradient.data());
  return gradient;
}

void check_gradient_output(const GradientOutput& file, const AttentionProblem& problem, const AttentionPolicy& policy) {
  check_shared_file(describe(file, problem, policy));
}

void write_gradients(comm::Communicator& communicator, const GradientOutput& file, const AttentionProblem& problem,
                     const AttentionPolicy& policy, const partition::Layout& layout, const BackwardResult& result) {
  const RankId rank(communicator.rank());
  const std::vector<RowRange> runs = rows_of_file(layout, rank, layout.token_count(rank));
  std::vector<OwnRows> rows = {{"dq", runs, std::as_bytes(std::span(result.query_gradient))},
                               {"dk", runs, std::as_bytes(std::span(result.key_gradient))},
                               {"dv", runs, std::as_bytes(std::span(result.value_gradient))}};
  if (file.with_landmark_queries) {
    rows.push_back({"dlandmark_q", runs, std::as_bytes(std::span(result.retrieval_gradient))});
  }
  write_shared_file(communicator, describe(file, problem, policy), rows);
}

}  // namespace ringmark::runtime
