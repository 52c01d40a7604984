// K and V of the rows of a rank as blocks, where peers may read them.
#pragma once

#include <cstddef>

#include "comm/communicator.h"
#include "kernels/cuda/layer.h"
#include "runtime/cuda/device_shard.h"
#include "runtime/cuda/own_chunks.h"
#include "runtime/cuda/timeline.h"
#include "runtime/cuda/workspace.h"

namespace ringmark::runtime::cuda {

// Collective. Packs K and V of `shard` into `arena`, [own chunks][kv_heads], as the kernels of `path` read them, and
// releases them. Returns the path to go on with: kSimt where a value of V of some rank is beyond the range of the
// tensor core kernels. Waits for the workspace's stream.
kernels::cuda::Path pack_own_blocks(comm::Communicator& communicator, const kernels::cuda::LayerShape& shape,
                                    kernels::cuda::Path path, const OwnChunks& own, DeviceShard& shard,
                                    std::byte* arena, Workspace& workspace, Timeline& timeline);

}  // namespace ringmark::runtime::cuda
