// The definition of NSA in fp64, straight from docs/numerics.md.
#pragma once

#include <span>

#include "core/nsa_policy.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

// out, lse (that of the selected branch), selection, and margin: the gap of importance between the last chunk that was
// taken and the next, +inf without a next. gates [queries, H, 3]: compressed, selected, window. The layer's own policy
// is not looked at.
Result attend_nsa(const Layer& layer, const NsaPolicy& policy, std::span<const TokenId> queries,
                  std::span<const float> gates, int threads);

}  // namespace ringmark::kernels::reference
