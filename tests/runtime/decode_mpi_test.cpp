// Decoding under mpirun: the same bodies as with ranks as threads, over every transport of host memory.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/mpi_communicator.h"
#include "tests/runtime/decode_checks.h"

namespace ringmark::test {
namespace {

TEST(DecodeOnMpi, equals_one_prefill_over_every_transport) {
  comm::MpiCommunicator communicator;
  AttentionProblem problem;
  problem.cu_seqlens = {0, 60, 61, 230};
  problem.tokens = problem.cu_seqlens.back();
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  problem.scale = 1.0f / std::sqrt(32.0f);
  problem.landmark_slots = true;
  const TestLayer layer = random_layer(problem, {20, 3, 4, Scorer::kHils}, 17);
  for (const auto transport : {comm::TransportChoice::kRma, comm::TransportChoice::kRequest}) {
    for (const auto exchange : {runtime::Exchange::kAuto, runtime::Exchange::kPull, runtime::Exchange::kPush}) {
      for (const std::int64_t most : {1, 20}) {
        DecodeRun run;
        run.transport = transport;
        run.options.exchange = exchange;
        run.steps = make_steps(sequence_lengths(layer), 50, most, 3);
        check_decode(communicator, layer, run);
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::test
