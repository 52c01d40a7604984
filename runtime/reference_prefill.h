// Prefill by the fp64 reference: every rank gathers the whole layer and computes its own rows from the definition.
// Moves everything a ring would move; for small problems and for checking.
#pragma once

#include <functional>
#include <span>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/reference/attention.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

// Collective. Same result as prefill(), rounded once to fp32.
PrefillResult reference_prefill(comm::Communicator& communicator, const AttentionProblem& problem,
                                const AttentionPolicy& policy, const partition::Layout& layout, const LayerShard& shard,
                                int threads);

// The same with any definition of the result of some rows of the layer. `policy` is what the layer says of itself.
using ReferenceOfRows =
    std::function<kernels::reference::Result(const kernels::reference::Layer& layer, std::span<const TokenId> tokens)>;
PrefillResult reference_prefill(comm::Communicator& communicator, const AttentionProblem& problem,
                                const AttentionPolicy& policy, const partition::Layout& layout, const LayerShard& shard,
                                const ReferenceOfRows& attend);

}  // namespace ringmark::runtime
