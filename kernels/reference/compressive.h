// The definition of attention to a compressive memory in fp64, straight from docs/numerics.md.
#pragma once

#include <span>

#include "core/compressive_policy.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

// out and lse; the rest of the result is empty. The layer's own policy is not looked at.
Result attend_compressive(const Layer& layer, const CompressivePolicy& policy, std::span<const TokenId> queries,
                          int threads);

}  // namespace ringmark::kernels::reference
