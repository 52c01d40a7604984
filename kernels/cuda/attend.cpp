#include "kernels/cuda/attend.h"

#include "kernels/cuda/hopper/attend.h"
#include "kernels/cuda/mma/attend.h"
#include "kernels/cuda/simt/attend.h"

namespace ringmark::kernels::cuda {

void attend_window(Path path, const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream) {
  if (rows.empty()) return;
  require(blocks.order == block_order(path), "attend_window gets blocks in the order of its path");
  switch (path) {
    case Path::kHopper: return hopper::attend_window(shape, geometry, blocks, queries, rows, out, lse, stream);
    case Path::kMma: return mma::attend_window(shape, geometry, blocks, queries, rows, out, lse, stream);
    case Path::kSimt: return simt::attend_window(shape, geometry, blocks, queries, rows, out, lse, stream);
  }
}

void attend_chosen(Path path, const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* selection,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  require(blocks.order == block_order(path), "attend_chosen gets blocks in the order of its path");
  switch (path) {
    case Path::kHopper:
      return hopper::attend_chosen(shape, geometry, blocks, queries, rows, plan, selection, chosen_scores,
                                   window_weight, out, stream);
    case Path::kMma:
      return mma::attend_chosen(shape, geometry, blocks, queries, rows, plan, selection, chosen_scores, window_weight,
                                out, stream);
    case Path::kSimt:
      return simt::attend_chosen(shape, geometry, blocks, queries, rows, plan, selection, chosen_scores, window_weight,
                                 out, stream);
  }
}

}  // namespace ringmark::kernels::cuda
