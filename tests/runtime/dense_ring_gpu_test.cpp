// The exact ring on GPUs, with ranks as threads that share one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/cuda/choose_device_transport.h"
#include "comm/thread_ranks.h"
#include "runtime/cuda/dense_ring.h"
#include "tests/runtime/dense_checks.h"
#include "tests/support/gather_rows.h"

namespace ringmark::test {
namespace {

using kernels::cuda::Path;
using partition::Balance;

constexpr double kTensorError = 2e-3;  // of o: softmax weights in fp16
constexpr double kPlainError = 5e-5;

struct RingResult {
  std::vector<float> out, lse;  // in token order
};

// Collective.
RingResult run_ring(comm::Communicator& communicator, const TestLayer& layer, Balance balance,
                    std::optional<Path> path = {}) {
  const AttentionProblem& problem = layer.problem;
  const partition::SequenceGrid grid(problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), balance);
  const RankId rank(communicator.rank());
  runtime::LayerShard host = layer.shard(layout, rank);
  runtime::cuda::Workspace workspace;
  runtime::cuda::DeviceShard shard = runtime::cuda::DeviceShard::upload(host, workspace.stream);
  const auto chosen = comm::cuda::choose_device_transport(communicator, comm::cuda::DeviceTransportChoice::kAuto);
  runtime::SilentProgress progress;
  runtime::cuda::DenseRingOptions options;
  options.path = path;
  const auto result = runtime::cuda::attend_by_ring(communicator, *chosen.transport, problem, grid, layout, shard,
                                                    options, workspace, progress);
  std::int64_t needed = 0;
  for (const ChunkId chunk : layout.chunks_of(rank)) {
    const ChunkId first = grid.document_of(chunk).chunks.begin;
    const auto& own = layout.chunks_of(rank);
    const auto next = std::upper_bound(own.begin(), own.end(), chunk);
    if (next != own.end() && *next < grid.document_of(chunk).chunks.end) continue;  // a later one needs as much
    for (ChunkId key = first; key < chunk; ++key) needed += layout.owner(key) != rank;
  }
  EXPECT_EQ(result.bytes_received, needed * problem.kv_heads * kernels::BlockShape::of(problem).bytes());
  std::vector<float> out(static_cast<std::size_t>(shard.rows * problem.heads * problem.head_dim));
  std::vector<float> lse(static_cast<std::size_t>(shard.rows * problem.heads));
  workspace.out.download(out.data(), static_cast<std::int64_t>(out.size()), workspace.stream);
  workspace.lse.download(lse.data(), static_cast<std::int64_t>(lse.size()), workspace.stream);
  workspace.stream.wait();
  return {gather(communicator, layout, problem.tokens, problem.heads * problem.head_dim, out),
          gather(communicator, layout, problem.tokens, problem.heads, lse)};
}

class DenseRingOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!engine_under_test().available()) GTEST_SKIP() << "no GPU";
  }
};

void check_layer(const AttentionProblem& problem, std::uint64_t seed, std::optional<Path> path, double bound) {
  const TestLayer layer = dense_layer(problem, seed);
  const auto reference = run_reference(layer);
  for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
    for (const int ranks : {1, 2, 3, 5}) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const RingResult result = run_ring(communicator, layer, balance, path);
        const std::string what = describe(layer) + " " + std::string(name_of(balance)) + " on " + std::to_string(ranks);
        EXPECT_LE(max_difference(result.out, reference.out), bound) << what;
        EXPECT_LE(max_difference(result.lse, reference.lse), kPlainError) << what;
      });
    }
  }
}

AttentionProblem tensor_problem(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 8;
  problem.kv_heads = 2;
  problem.head_dim = 128;
  problem.scale = 0.09f;
  return problem;
}

TEST_F(DenseRingOnGpu, matches_the_reference) {
  for (const Path path : {Path::kHopper, Path::kMma}) check_layer(tensor_problem(1000), 1, path, kTensorError);
  check_layer(tensor_problem(700), 2, Path::kSimt, kPlainError);
  check_layer(tensor_problem(1), 3, {}, kTensorError);
}

TEST_F(DenseRingOnGpu, matches_the_reference_on_packed_documents_and_odd_shapes) {
  AttentionProblem packed = tensor_problem(900);
  packed.landmark_slots = true;
  packed.cu_seqlens = {0, 5, 6, 330, 330, 900};
  check_layer(packed, 4, {}, kTensorError);
  AttentionProblem odd;
  odd.tokens = 261;
  odd.heads = 6;
  odd.kv_heads = 2;
  odd.head_dim = 24;
  odd.chunk_size = 16;
  odd.dtype = DType::kFloat32;
  check_layer(odd, 5, {}, kPlainError);
}

// Zero queries: the mean of the values up to the row, and the log of their count.
TEST_F(DenseRingOnGpu, running_means) {
  TestLayer layer = dense_layer(tensor_problem(400), 6);
  std::fill(layer.q.begin(), layer.q.end(), std::byte{0});
  std::vector<float> values(layer.v.size() / 2);
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(n / (2 * 128) % 7);  // of the token
  narrow(values.data(), DType::kBfloat16, static_cast<std::int64_t>(values.size()), layer.v.data());
  comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
    const RingResult result = run_ring(communicator, layer, Balance::kZigzag);
    double sum = 0.0;
    for (std::size_t token = 0; token < 400; ++token) {
      sum += static_cast<double>(token % 7);
      const auto count = static_cast<double>(token + 1);
      EXPECT_NEAR(result.out[token * 8 * 128 + 77], sum / count, kTensorError) << token;
      EXPECT_NEAR(result.lse[token * 8 + 5], std::log(count), kPlainError) << token;
    }
  });
}

}  // namespace
}  // namespace ringmark::test
