// Prefill of one layer with a compressive memory over all ranks.
#pragma once

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/compressive_policy.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/pooled_layer.h"

namespace ringmark::runtime::compressive {

// Collective. `shard` holds the rows of this rank in the order of `layout`; its K and V are moved into blocks that
// peers read, and released. Of the result: out, lse (natural log), bytes_fetched (blocks), bytes_merged (pooled keys of
// peers), clock (pool, plan, fetch, attend). The bits of a row do not depend on ranks, layout, budget or threads.
// Throws Error(kPeer) when a peer misses a deadline.
PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const CompressivePolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, const PooledOptions& options, ProgressSink& progress);

MemoryPlan plan_memory(const AttentionProblem& problem, const CompressivePolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, const PooledOptions& options);

}  // namespace ringmark::runtime::compressive
