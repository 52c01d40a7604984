// A whole layer on every rank, in fp64: what the reference works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kernels/reference/attention.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// Collective: the rows of all ranks in token order. `own` are this rank's, in the order of the layout.
std::vector<std::byte> gather_rows(comm::Communicator& communicator, const partition::Layout& layout,
                                   std::int64_t tokens, comm::ConstBytes own, std::int64_t row_bytes);

// Collective.
kernels::reference::Layer gather_layer(comm::Communicator& communicator, const AttentionProblem& problem,
                                       const AttentionPolicy& policy, const partition::Layout& layout,
                                       const LayerShard& shard);

// Bytes of K and V that a rank with so many rows receives for it.
std::int64_t gathered_key_bytes(const AttentionProblem& problem, std::int64_t own_rows);

}  // namespace ringmark::runtime
