// The promises of prefill under mpirun, over both MPI transports.
#include <gtest/gtest.h>

#include <set>

#include "comm/mpi_communicator.h"
#include "tests/runtime/prefill_checks.h"

namespace ringmark::test {
namespace {

using comm::TransportChoice;

std::vector<Route> all_routes() {
  std::vector<Route> all = routes(TransportChoice::kRma);
  for (const Route& route : routes(TransportChoice::kRequest)) all.push_back(route);
  return all;
}

TEST(PrefillOnMpi, golden_layer_has_one_digest) {
  comm::MpiCommunicator communicator;
  const GoldenLayer golden = load_golden(2048);
  std::set<std::uint64_t> digests;
  for (const Route& route : all_routes()) digests.insert(check_golden(communicator, golden, route));
  EXPECT_EQ(digests.size(), 1u);
  EXPECT_EQ(*digests.begin(), kGoldenDigest2048);
}

TEST(PrefillOnMpi, packed_documents_match_the_reference) {
  comm::MpiCommunicator communicator;
  AttentionProblem problem;
  problem.tokens = 500;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 5, 6, 136, 136, 500};
  const AttentionPolicy policy{20, 3, 4, Scorer::kHils};
  const TestLayer layer = random_layer(problem, policy, 17);
  const auto reference = run_reference(layer);
  std::set<std::uint64_t> digests;
  for (const Route& route : all_routes()) {
    digests.insert(check_against_reference(communicator, layer, reference, route, needed_budget(layer)));
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST(PrefillOnMpi, probe) {
  comm::MpiCommunicator communicator;
  AttentionProblem problem;
  problem.tokens = 131;
  problem.heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  const TestLayer layer = random_layer(problem, {16, 3, 0, Scorer::kHils}, 11);
  for (const Route& route : all_routes()) check_probe(communicator, layer, TokenId(70), route);
}

}  // namespace
}  // namespace ringmark::test
