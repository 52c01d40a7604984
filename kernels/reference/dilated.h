// Dilated attention in plain fp64: what the fast code is compared with.
#pragma once

#include <span>

#include "core/ids.h"
#include "kernels/dilation.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

// Out and lse of the listed rows, in their order: every pair by itself, and the pairs merged by their lse, so that a
// key that a row sees under several pairs counts for each. The layer's policy does not matter.
Result attend_dilated(const Layer& layer, std::span<const Dilation> dilations, std::span<const TokenId> queries);

}  // namespace ringmark::kernels::reference
