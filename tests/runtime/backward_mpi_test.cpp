// The backward pass under mpirun, over both MPI transports.
#include <gtest/gtest.h>

#include "comm/mpi_communicator.h"
#include "runtime/dense/prefill.h"
#include "tests/runtime/backward_checks.h"

namespace ringmark::test {
namespace {

using comm::TransportChoice;

void check_on_all_transports(const TestLayer& layer) {
  comm::MpiCommunicator communicator;
  const std::vector<float> out_gradient = random_out_gradient(layer.problem, 3);
  const LayerGradients alone = run_backward_alone(layer, out_gradient);
  const auto want = reference_gradients(layer, alone.selection, out_gradient);
  for (const TransportChoice transport : {TransportChoice::kRma, TransportChoice::kRequest}) {
    check_backward(communicator, layer, out_gradient, want, alone, transport);
  }
}

TEST(BackwardOnMpi, worked_by_hand) {
  comm::MpiCommunicator communicator;
  check_gradient_examples(communicator, TransportChoice::kRequest);
}

TEST(BackwardOnMpi, packed_documents_match_the_reference) { check_on_all_transports(packed_layer()); }

TEST(BackwardOnMpi, dense_attention_matches_the_reference) {
  TestLayer layer = packed_layer();
  layer.policy = runtime::dense::whole_window(layer.problem);
  check_on_all_transports(layer);
}

}  // namespace
}  // namespace ringmark::test
