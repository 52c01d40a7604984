// What prefill promises, as functions of a communicator: run with ranks as threads and, the same bodies, under mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "partition/layout.h"
#include "runtime/memory_plan.h"
#include "runtime/merge_strategy.h"
#include "tests/support/golden_layer.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

struct Route {
  partition::Balance balance = partition::Balance::kContiguous;
  runtime::Merge merge = runtime::Merge::kAuto;
  comm::TransportChoice transport = comm::TransportChoice::kAuto;
};
std::string describe(const Route& route);
// contiguous and zigzag, times scores and landmarks.
std::vector<Route> routes(comm::TransportChoice transport);

// The golden layer: o within 2e-3 of the float64 result (the bar) and within the engine's own error, sets equal where
// the margin is above 1e-4. Returns the selection digest: that of the first 2048 tokens is kGoldenDigest2048 on every
// rank count, route and instruction set.
inline constexpr std::uint64_t kGoldenDigest2048 = 0xf2296a08f26782a9ull;
std::uint64_t check_golden(comm::Communicator& communicator, const GoldenLayer& golden, const Route& route);

// A result against the reference: out and lse within their bounds, more for hotter logits; sets equal where the
// reference's margin is above 1e-4 or exactly 0 (a tie of equal scores). Rows whose choice was too close are left out
// of the output check.
struct Bounds {
  double out = 0.0;
  double lse = 0.0;
};
void expect_near_reference(const GatheredResult& result, const TestLayer& layer,
                           const kernels::reference::Result& reference, const Bounds& bounds, const std::string& what);

// Hand-sized: 150 tokens in chunks of 8, 4 heads of 32 components over 2 kv heads.
AttentionProblem small_problem(bool landmark_slots);

// The bytes that a plan counts under a name; -1 when it names nothing so.
std::int64_t item_bytes(const runtime::MemoryPlan& plan, std::string_view name);

// The results of one rank; 2 to 5 ranks, under either merge, must have their bits. positions: by what the rows were
// rotated, for policies that ask.
GatheredResult same_on_any_ranks(const TestLayer& layer, std::int64_t fetch_budget,
                                 const kernels::PositionEncoding& positions = {});

// A run of a layer against the reference, within the engine's error. Returns the digest.
std::uint64_t check_against_reference(comm::Communicator& communicator, const TestLayer& layer,
                                      const kernels::reference::Result& reference, const Route& route,
                                      std::int64_t fetch_budget = std::int64_t{64} << 20);

// Perturbs one token and looks at which rows change: none before it, none in other documents, its own row, and every
// row whose window or sinks hold it (bugs.md "probe", 15, 28, 30, 32, 35).
void check_probe(comm::Communicator& communicator, const TestLayer& layer, TokenId token, const Route& route);

}  // namespace ringmark::test
