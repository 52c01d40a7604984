#include "runtime/logo/branch_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kvstore/safetensors_writer.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::runtime::logo {
namespace {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  DType dtype = DType::kFloat32;
};

std::string write(const test::TemporaryFolder& folder, const std::vector<Tensor>& tensors) {
  std::string path = folder.file("layer.safetensors");
  std::vector<kvstore::TensorToWrite> shapes;
  for (const Tensor& of : tensors) {
    shapes.push_back({of.name, of.dtype == DType::kFloat32 ? "F32" : "BF16", of.shape});
  }
  auto writer = kvstore::SafetensorsWriter::create(path, shapes, {});
  for (const Tensor& of : tensors) {
    std::vector<std::byte> bytes(of.values.size() * static_cast<std::size_t>(size_of(of.dtype)));
    narrow(of.values.data(), of.dtype, std::ssize(of.values), bytes.data());
    writer.write_rows(of.name, {0, of.shape[0]}, bytes);
  }
  writer.flush();
  writer.commit();
  return path;
}

// Four tokens, two heads of two components.
AttentionProblem problem() {
  AttentionProblem problem;
  problem.tokens = 4;
  problem.heads = 2;
  problem.head_dim = 2;
  return problem;
}

constexpr std::array kAll = {RowRange{0, 4}};

std::string refusal(const std::vector<Tensor>& tensors) {
  const test::TemporaryFolder folder;
  const std::string path = write(folder, tensors);
  try {
    BranchTensors(path, problem()).gates(kAll);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& part, const std::vector<Tensor>& tensors) {
  EXPECT_NE(refusal(tensors).find(part), std::string::npos) << refusal(tensors);
}

TEST(BranchTensors, gives_the_gates_of_runs_of_tokens) {
  const test::TemporaryFolder folder;
  const BranchTensors tensors(write(folder, {{"gate", {4}, {0.125f, 0.25f, 0.5f, 0.75f}, DType::kBfloat16}}),
                              problem());
  EXPECT_EQ(tensors.gates(kAll), (std::vector<float>{0.125f, 0.25f, 0.5f, 0.75f}));
  EXPECT_EQ(tensors.gates(std::array{RowRange{3, 4}, RowRange{0, 1}}), (std::vector<float>{0.75f, 0.125f}));
  EXPECT_FALSE(tensors.weights().transforms());
  EXPECT_TRUE(tensors.weights().local_norm.empty());
}

// 1 / (1 + e^-(h . (1, 2, 3) - 1)) by hand: h . w - 1 = 0, ln 3, -ln 3, 1000.
TEST(BranchTensors, computes_gates_of_hidden_states) {
  const test::TemporaryFolder folder;
  const float ln3 = std::log(3.0f);
  const BranchTensors tensors(write(folder, {{"hidden", {4, 3}, {1, 0, 0, 1, ln3 / 2, 0, 1, 0, -ln3 / 3, 1, 500, 0}},
                                             {"gate_weight", {3}, {1, 2, 3}},
                                             {"gate_bias", {1}, {-1}}}),
                              problem());
  const std::vector<float> gates = tensors.gates(std::array{RowRange{2, 4}, RowRange{0, 2}});
  const std::vector<float> want = {0.25f, 1.0f, 0.5f, 0.75f};
  for (std::size_t n = 0; n < 4; ++n) EXPECT_NEAR(gates[n], want[n], 1e-6f);
}

TEST(BranchTensors, reads_the_weights_of_the_branches) {
  const test::TemporaryFolder folder;
  const BranchTensors tensors(write(folder, {{"gate", {4}, {0.5f, 0.5f, 0.5f, 0.5f}},
                                             {"logo.local_norm", {2}, {1, 2}},
                                             {"logo.global_norm", {2}, {3, 4}},
                                             {"logo.global_scale", {2, 2}, {5, 6, 7, 8}},
                                             {"logo.global_offset", {2, 2}, {-1, -2, -3, -4}}}),
                              problem());
  EXPECT_EQ(tensors.weights().local_norm, (std::vector<float>{1, 2}));
  EXPECT_EQ(tensors.weights().global_norm, (std::vector<float>{3, 4}));
  EXPECT_EQ(tensors.weights().global_scale, (std::vector<float>{5, 6, 7, 8}));
  EXPECT_EQ(tensors.weights().global_offset, (std::vector<float>{-1, -2, -3, -4}));
  EXPECT_TRUE(tensors.weights().transforms());
}

TEST(BranchTensors, refuses_what_does_not_fit_by_name) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor gate{"gate", {4}, {0.5f, 0.5f, 0.5f, 0.5f}};
  const Tensor hidden{"hidden", {4, 1}, {1, 2, 3, 4}}, weight{"gate_weight", {1}, {1}}, bias{"gate_bias", {1}, {0}};
  EXPECT_EQ(refusal({gate}), "accepted");
  EXPECT_EQ(refusal({hidden, weight, bias}), "accepted");
  expect_refusal("neither the tensor gate nor hidden", {weight, bias});
  expect_refusal("both tensors gate and hidden", {gate, hidden, weight, bias});
  expect_refusal("tensor gate has shape [3], not [4]", {{"gate", {3}, {0.5f, 0.5f, 0.5f}}});
  expect_refusal("tensor gate holds 1 at token 2", {{"gate", {4}, {0.5f, 0.5f, 1.0f, 0.5f}}});
  expect_refusal("tensor gate holds 0 at token 0", {{"gate", {4}, {0.0f, 0.5f, 0.5f, 0.5f}}});
  expect_refusal("tensor gate holds nan at token 3", {{"gate", {4}, {0.5f, 0.5f, 0.5f, nan}}});
  expect_refusal("tensor hidden has shape [3, 1], not [4, D]", {{"hidden", {3, 1}, {1, 2, 3}}, weight, bias});
  expect_refusal("hidden holds NaN or infinity at token 1", {{"hidden", {4, 1}, {1, nan, 3, 4}}, weight, bias});
  expect_refusal("gate_weight", {hidden, bias});
  expect_refusal("gate_bias", {hidden, weight});
  expect_refusal("tensor gate_weight has shape [2], not [1]", {hidden, {"gate_weight", {2}, {1, 1}}, bias});
  expect_refusal("tensor gate_bias holds NaN", {hidden, weight, {"gate_bias", {1}, {nan}}});
  expect_refusal("tensor logo.local_norm has shape [3], not [2]", {gate, {"logo.local_norm", {3}, {1, 1, 1}}});
  expect_refusal("tensor logo.global_scale has shape [4], not [2, 2]",
                 {gate, {"logo.global_scale", {4}, {1, 1, 1, 1}}});
}

}  // namespace
}  // namespace ringmark::runtime::logo
