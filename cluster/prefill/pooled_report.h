// The run and the report of the policies that attend to pooled keys (docs/report.md).
#pragma once

#include <string>
#include <vector>

#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/prefill_report.h"
#include "comm/block_transport.h"
#include "runtime/pooled_layer.h"

namespace ringmark::cluster {

// What the engine is told by the options of the run.
runtime::PooledOptions pooled_options(LayerRun& run);

// Collective: a transport for the blocks of the shard.
comm::ChosenTransport transport_of_blocks(const LayerRun& run);

// Collective. `policy` is what the result says of itself; the fields that only the policy has are the caller's.
PrefillReport report_of(const LayerRun& run, const AttentionPolicy& policy, const comm::ChosenTransport& transport,
                        const runtime::PrefillResult& result);

}  // namespace ringmark::cluster
