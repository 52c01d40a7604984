#include "kernels/cuda/score.h"

#include "kernels/cuda/hopper/score.h"
#include "kernels/cuda/mma/score.h"

namespace ringmark::kernels::cuda {

void score_approximately(Path path, const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                         RowRange rows, const LandmarkTiles& tiles, const ApproximateLists& lists,
                         cudaStream_t stream) {
  require(path != Path::kSimt && has_tensor_kernels(shape), "a layer with tensor core kernels is scored approximately");
  if (path == Path::kHopper) {
    hopper::score_approximately(shape, geometry, queries, rows, tiles, lists, stream);
  } else {
    mma::score_approximately(shape, geometry, queries, rows, tiles, lists, stream);
  }
}

}  // namespace ringmark::kernels::cuda
