// The backward pass by the fp64 reference: every rank gathers the whole layer, differentiates it from the definition
// and keeps its own rows. For small problems and for checking.
#pragma once

#include <span>

#include "runtime/backward.h"

namespace ringmark::runtime {

// Collective. Same result as backward(), rounded once to fp32.
BackwardResult reference_backward(comm::Communicator& communicator, const AttentionProblem& problem,
                                  const AttentionPolicy& policy, const partition::Layout& layout,
                                  const LayerShard& shard, const kernels::Selection& selection,
                                  std::span<const float> out_gradient, int threads);

}  // namespace ringmark::runtime
