// Dense attention under mpirun.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "comm/mpi_communicator.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "tests/runtime/dense_checks.h"

namespace ringmark::test {
namespace {

TEST(DenseOnMpi, worked_by_hand) {
  comm::MpiCommunicator communicator;
  for (const DenseRoute& route : dense_routes(communicator.size())) {
    check_running_means(communicator, route);
    check_weight_of_ln_3(communicator, route);
    check_two_documents(communicator, route);
    check_extreme_scores(communicator, route);
  }
}

TEST(DenseOnMpi, packed_documents_match_the_reference) {
  comm::MpiCommunicator communicator;
  AttentionProblem problem;
  problem.tokens = 500;
  problem.heads = 6;
  problem.kv_heads = 3;
  problem.head_dim = 80;
  problem.chunk_size = 16;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 5, 6, 136, 136, 500};
  const TestLayer layer = dense_layer(problem, 17);
  const auto reference = run_reference(layer);
  const auto one = comm::make_single_rank();
  const DenseResult alone = run_dense(*one, layer, {});
  for (const DenseRoute& route : dense_routes(communicator.size())) {
    check_dense(communicator, layer, reference, alone, route);
    check_received_bytes(communicator, layer, route);
  }
}

// Messages that are too long to be buffered on their way.
TEST(DenseOnMpi, a_rank_that_does_not_come_is_named) {
  comm::MpiCommunicator world;
  if (world.size() == 1) GTEST_SKIP() << "nobody to wait for";
  AttentionProblem problem;
  problem.tokens = 4096;
  problem.heads = 4;
  problem.kv_heads = 4;
  problem.head_dim = 128;
  const TestLayer layer = dense_layer(problem, 3);
  const int missing = world.size() - 1;
  for (const auto strategy : {runtime::dense::Strategy::kRing, runtime::dense::Strategy::kAllGather}) {
    comm::MpiCommunicator hasty(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds(500)});
    if (world.rank() != missing) {
      try {
        run_dense(hasty, layer, {strategy, 1, partition::Balance::kZigzag});
        ADD_FAILURE() << "went on without rank " << missing;
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.code(), ExitCode::kPeer);
        EXPECT_EQ(text.find("rank " + std::to_string(world.rank()) + ": stage '"), 0u) << text;
        EXPECT_NE(text.find("s for rank"), std::string::npos) << text;
      }
    }
    world.barrier("everybody is back");
  }
}

}  // namespace
}  // namespace ringmark::test
