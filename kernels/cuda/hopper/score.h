// Approximate scoring on Hopper: wgmma over landmark tiles, compute capability 9.0 only. Arguments and results as in
// kernels/cuda/score.h, and:
//   * Lists hold the best topk + 4 of the scores as computed here, scores descending, then chunk ids DESCENDING (chunks
//     are walked from the newest to the oldest, so that an equal score never has to displace an older one). The cut is
//     the best score that is not listed. NaN and -inf are no candidates.
//   * Scores are computed in units of log2, fma(q . 2^-e key, scale 2^e log2(e), bias log2(e)), and written times ln 2:
//     beside the errors of the product a few roundings, at most 2^-23 (|scale q . key| + |bias| + |score|).
//   * sum with one head a group: the normaliser changes no order and is not computed: {best score, 1}.
//   * What exceeds LogSum::kLargestScore makes the sum {LogSum::kLargestScore, 1}.
// Shapes: has_tensor_kernels. lists.capacity is at least ApproximateLists::capacity_of(topk).
#pragma once

#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda::hopper {

void score_approximately(const LayerShape& shape, const Geometry& geometry, const std::byte* queries, RowRange rows,
                         const LandmarkTiles& tiles, const ApproximateLists& lists, cudaStream_t stream);

}  // namespace ringmark::kernels::cuda::hopper
