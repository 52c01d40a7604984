// Which blocks a rank fetches for a selection that stays on the device, and when.
#pragma once

#include <cstdint>

#include "kernels/cuda/layer.h"
#include "partition/layout.h"
#include "runtime/cuda/workspace.h"
#include "runtime/fetch_strategy.h"
#include "runtime/group_fetch.h"

namespace ringmark::runtime::cuda {

// plan_group_fetch for workspace.selection, [rows, Hkv, K]. Waits for the stream.
GroupFetch plan_chosen_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank,
                             const kernels::cuda::LayerShape& shape, std::int64_t rows, Fetch asked,
                             std::int64_t budget, Workspace& workspace);

}  // namespace ringmark::runtime::cuda
