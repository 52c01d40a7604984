// What dense attention promises, as functions of a communicator: run with ranks as threads and, the same bodies, under
// mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "partition/layout.h"
#include "runtime/dense/prefill.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

struct DenseRoute {
  runtime::dense::Strategy strategy = runtime::dense::Strategy::kRing;
  int ulysses_ranks = 1;
  partition::Balance balance = partition::Balance::kContiguous;
  std::int64_t fetch_budget = std::int64_t{64} << 20;
};
std::string describe(const DenseRoute& route, int ranks);

// Every strategy that so many ranks allow, with every group of Ulysses, on every layout; all-gather in one piece and in
// many.
std::vector<DenseRoute> dense_routes(int ranks);

// In token order.
struct DenseResult {
  std::vector<float> out;
  std::vector<float> lse;
  runtime::dense::ReceivedBytes received;  // of this rank
};
// Collective.
DenseResult run_dense(comm::Communicator& communicator, const TestLayer& layer, const DenseRoute& route);

// A layer whose policy is the whole window.
TestLayer dense_layer(AttentionProblem problem, std::uint64_t seed);

// Against fp64: out and lse within 1e-5, more for hotter logits. All-gather and Ulysses walk the chunks of a row in
// ascending order on one rank: their bits are those of one rank, `alone`.
void check_dense(comm::Communicator& communicator, const TestLayer& layer, const kernels::reference::Result& reference,
                 const DenseResult& alone, const DenseRoute& route);

// What a rank received against a count, token by token, of what it needs.
void check_received_bytes(comm::Communicator& communicator, const TestLayer& layer, const DenseRoute& route);

// Zero queries: the mean of the values up to the row, and the log of their count.
void check_running_means(comm::Communicator& communicator, const DenseRoute& route);
// A score of ln 3 beside a score of 0, on two ranks if there are two.
void check_weight_of_ln_3(comm::Communicator& communicator, const DenseRoute& route);
// Two documents of two tokens: the second begins anew.
void check_two_documents(comm::Communicator& communicator, const DenseRoute& route);
// Scores of 80 and -80, and keys of -inf, which nobody counts.
void check_extreme_scores(comm::Communicator& communicator, const DenseRoute& route);

}  // namespace ringmark::test
