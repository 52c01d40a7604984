// Approximate scoring by mma.sync: compute capability 8.0 and later, any shape of has_tensor_kernels(). Arguments and
// results as in kernels/cuda/score.h. What is listed are exactly the best topk + 4 of the scores as computed here, in
// the order of kernels::better; the cut is the best score that is not listed. A score that is NaN or -inf is no
// candidate.
#pragma once

#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda::mma {

void score_approximately(const LayerShape& shape, const Geometry& geometry, const std::byte* queries, RowRange rows,
                         const LandmarkTiles& tiles, const ApproximateLists& lists, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::mma
