// Where an engine begins: K and V of the rank's chunks go into blocks that peers may read.
#pragma once

#include "comm/block_transport.h"
#include "core/ids.h"
#include "core/problem.h"
#include "kernels/block_table.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// [chunks, Hkv] blocks of the rank, in memory of the transport: the next region that it exposes, to be published. The
// blocks are listed in `table`, and the shard lets go of its K and V.
comm::Bytes expose_blocks(comm::BlockTransport& transport, const AttentionProblem& problem,
                          const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                          LayerShard& shard, kernels::BlockTable& table);

}  // namespace ringmark::runtime
