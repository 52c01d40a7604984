// What the backward pass promises, as functions of a communicator: run with ranks as threads and, the same bodies,
// under mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "kernels/reference/backward.h"
#include "partition/layout.h"
#include "runtime/backward.h"
#include "runtime/prefill.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

struct BackwardRoute {
  partition::Balance balance = partition::Balance::kZigzag;
  comm::TransportChoice transport = comm::TransportChoice::kAuto;
  std::int64_t fetch_budget = std::int64_t{64} << 20;
  std::int64_t gradient_budget = std::int64_t{256} << 20;
  int threads = 1;
};
// Every layout; budgets for everything at once and for one chunk at a time.
std::vector<BackwardRoute> backward_routes(const TestLayer& layer, comm::TransportChoice transport);
std::string describe(const BackwardRoute& route);

// Everything in token order.
struct LayerGradients {
  std::vector<float> q, retrieval_q, k, v;
  kernels::Selection selection;      // of the forward
  std::int64_t bytes_fetched = 0;    // all ranks
  std::int64_t bytes_gradients = 0;  // all ranks
  std::int64_t stretches = 0;
};
// Collective: what one rank has of the forward of a layer.
runtime::PrefillResult run_forward(comm::Communicator& communicator, const TestLayer& layer,
                                   const partition::Layout& layout, const BackwardRoute& route);
// Collective, on the results of the forward. out_gradient [N, H, d].
runtime::BackwardResult run_backward(comm::Communicator& communicator, const TestLayer& layer,
                                     const partition::Layout& layout, const BackwardRoute& route,
                                     const runtime::PrefillResult& forward, const std::vector<float>& out_gradient);
// Collective: both.
LayerGradients run_backward(comm::Communicator& communicator, const TestLayer& layer,
                            const std::vector<float>& out_gradient, const BackwardRoute& route);
LayerGradients run_backward_alone(const TestLayer& layer, const std::vector<float>& out_gradient);

// N(0, 1).
std::vector<float> random_out_gradient(const AttentionProblem& problem, std::uint64_t seed);

// dL/dq as the layer's tensors define it: where it has no retrieval queries their part is in q.
kernels::reference::Gradients reference_gradients(const TestLayer& layer, const kernels::Selection& selection,
                                                  const std::vector<float>& out_gradient);

// The largest difference of a tensor, relative to its largest component or to 0.1; NaN counts as infinite.
double relative_error(const std::vector<float>& got, const std::vector<double>& want);

// Every tensor within 1e-4 of the reference, more for hotter logits, on every route. The gradient of q has the bits of
// one rank, `alone`, unless landmark queries add to it; on one layout budgets and threads change no bit of any.
void check_backward(comm::Communicator& communicator, const TestLayer& layer, const std::vector<float>& out_gradient,
                    const kernels::reference::Gradients& want, const LayerGradients& alone,
                    comm::TransportChoice transport);

// The examples of gradient_examples(), to 1e-6.
void check_gradient_examples(comm::Communicator& communicator, comm::TransportChoice transport);

// A packed layer with landmark slots and sinks, whose blocks come from everywhere.
TestLayer packed_layer();

}  // namespace ringmark::test
