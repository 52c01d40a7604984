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

// out and lse of rows [begin, end) as one list, for comparisons.
std::vector<float> rows_of(const GatheredResult& result, const AttentionProblem& problem, std::int64_t begin,
                           std::int64_t end);

}  // namespace ringmark::test
