#include "runtime/logo/branch_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "runtime/layer_tensors.h"

namespace ringmark::runtime::logo {
namespace {

using kvstore::SafetensorsFile;
using kvstore::StoredTensor;

constexpr std::int64_t kRowsAtOnce = 4096;  // of hidden states, which are wide

bool is_finite(float value) { return std::isfinite(value); }

// A small tensor of exactly this shape.
std::vector<float> read_whole(const SafetensorsFile& file, const StoredTensor& tensor,
                              const std::vector<std::int64_t>& shape) {
  expect_shape(file, tensor, shape);
  std::vector<float> values = read_floats(file, tensor, std::array{RowRange{0, shape[0]}});
  if (!std::all_of(values.begin(), values.end(), is_finite)) {
    fail_in(file, fmt::format("tensor {} holds NaN or infinity", tensor.name));
  }
  return values;
}

std::vector<float> read_if_there(const SafetensorsFile& file, const char* name,
                                 const std::vector<std::int64_t>& shape) {
  const StoredTensor* const tensor = file.header().find(name);
  return tensor == nullptr ? std::vector<float>{} : read_whole(file, *tensor, shape);
}

}  // namespace

BranchTensors::BranchTensors(const std::string& path, const AttentionProblem& problem)
    : file_(path), gate_(file_.header().find("gate")), hidden_(file_.header().find("hidden")) {
  if (gate_ == nullptr && hidden_ == nullptr) {
    fail_in(file_, "neither the tensor gate nor hidden is there; --policy logo needs exactly one of them");
  }
  if (gate_ != nullptr && hidden_ != nullptr) {
    fail_in(file_, "both tensors gate and hidden are there; --policy logo takes exactly one of them");
  }
  if (gate_ != nullptr) {
    expect_shape(file_, *gate_, {problem.tokens});
    dtype_of(file_, *gate_);
  } else {
    if (hidden_->shape.size() != 2 || hidden_->shape[0] != problem.tokens) {
      fail_in(file_,
              fmt::format("tensor hidden has shape {}, not [{}, D]", shape_text(hidden_->shape), problem.tokens));
    }
    dtype_of(file_, *hidden_);
    gate_weight_ = read_whole(file_, file_.tensor("gate_weight"), {hidden_->shape[1]});
    gate_bias_ = read_whole(file_, file_.tensor("gate_bias"), {1}).front();
  }
  weights_.local_norm = read_if_there(file_, "logo.local_norm", {problem.head_dim});
  weights_.global_norm = read_if_there(file_, "logo.global_norm", {problem.head_dim});
  weights_.global_scale = read_if_there(file_, "logo.global_scale", {problem.heads, problem.head_dim});
  weights_.global_offset = read_if_there(file_, "logo.global_offset", {problem.heads, problem.head_dim});
}

std::vector<float> BranchTensors::gates(std::span<const RowRange> tokens) const {
  return gate_ != nullptr ? given_gates(tokens) : gates_of_hidden(tokens);
}

std::vector<float> BranchTensors::given_gates(std::span<const RowRange> tokens) const {
  std::vector<float> gates = read_floats(file_, *gate_, tokens);
  for (std::size_t n = 0; n < gates.size(); ++n) {
    if (gates[n] > 0.0f && gates[n] < 1.0f) continue;
    fail_in(file_, fmt::format("tensor gate holds {} at token {}, outside (0, 1)", gates[n],
                               row_of(tokens, static_cast<std::int64_t>(n))));
  }
  return gates;
}

std::vector<float> BranchTensors::gates_of_hidden(std::span<const RowRange> tokens) const {
  std::vector<float> gates;
  const std::size_t width = gate_weight_.size();
  for (const RowRange& run : tokens) {
    for (std::int64_t begin = run.begin; begin < run.end; begin += kRowsAtOnce) {
      const RowRange rows{begin, std::min(run.end, begin + kRowsAtOnce)};
      const std::vector<float> states = read_floats(file_, *hidden_, std::array{rows});
      for (std::int64_t token = rows.begin; token < rows.end; ++token) {
        const float* state = states.data() + static_cast<std::size_t>(token - rows.begin) * width;
        double sum = gate_bias_;
        for (std::size_t k = 0; k < width; ++k) sum += double{state[k]} * double{gate_weight_[k]};
        if (!std::isfinite(sum)) {
          fail_in(file_, fmt::format("tensor hidden holds NaN or infinity at token {}", token));
        }
        gates.push_back(static_cast<float>(1.0 / (1.0 + std::exp(-sum))));
      }
    }
  }
  return gates;
}

}  // namespace ringmark::runtime::logo
