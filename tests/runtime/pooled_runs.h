// Runs of the engines that attend to pooled keys, with ranks as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "partition/layout.h"
#include "runtime/pooled_layer.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {

using PooledEngine = std::function<runtime::PrefillResult(
    comm::Communicator& communicator, comm::BlockTransport& transport, const partition::Layout& layout,
    runtime::LayerShard& shard, const runtime::PooledOptions& options)>;

struct PooledRoute {
  int ranks = 1;
  partition::Balance balance = partition::Balance::kContiguous;
  runtime::PooledOptions options = {};
};
// 1 to 5 ranks on every layout, with budgets from `needed` bytes, tiles and threads of all kinds.
std::vector<PooledRoute> pooled_routes(std::int64_t needed);
std::string describe(const PooledRoute& route);

// The whole result, as rank after rank has gathered it.
GatheredResult run_pooled(const TestLayer& layer, const PooledRoute& route, const PooledEngine& engine);

// Every route must give the bits of the first. Returns them.
GatheredResult run_on_all_routes(const TestLayer& layer, std::int64_t needed, const PooledEngine& engine);

// Shapes that have broken something: lengths that divide by nothing, packed documents, landmark slots, shared kv heads,
// every dtype.
AttentionProblem random_pooled_problem(std::mt19937_64& random);

// One of packed documents: of 5, 1, 64, 0 and 80 tokens.
AttentionProblem packed_problem();

// A document gives the same bits packed, as in `whole`, or as alone(begin, end) gives those tokens.
void expect_bits_of_single_runs(const GatheredResult& whole, const AttentionProblem& problem,
                                const std::function<GatheredResult(std::int64_t begin, std::int64_t end)>& alone);

// A result that left nothing out of the layer.
void expect_dense_attention(const GatheredResult& result, const TestLayer& layer);

}  // namespace ringmark::test
