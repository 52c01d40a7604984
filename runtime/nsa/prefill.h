// Prefill of one layer of native sparse attention over all ranks: out = g0 compressed + g1 selected + g2 window.
#pragma once

#include <span>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/nsa_policy.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/pooled_layer.h"

namespace ringmark::runtime::nsa {

// Collective. `shard` holds the rows of this rank in the order of `layout`; its K and V are moved into blocks that
// peers read, and released. gates [rows, H, 3]: compressed, selected, window. Of the result: out, lse (natural log,
// that of the selected branch), selection, bytes_fetched (blocks), bytes_merged (pooled keys of peers), clock (pool,
// plan, fetch, window, compress, attend). The bits of a row do not depend on ranks, layout, budget or threads. Throws
// Error(kPeer) when a peer misses a deadline.
PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const NsaPolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, std::span<const float> gates, const PooledOptions& options,
                      ProgressSink& progress);

MemoryPlan plan_memory(const AttentionProblem& problem, const NsaPolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, const PooledOptions& options);

}  // namespace ringmark::runtime::nsa
