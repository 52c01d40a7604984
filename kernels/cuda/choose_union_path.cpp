#include "kernels/cuda/attend.h"

namespace ringmark::kernels::cuda {
namespace {

// Measured on an H200 at head_dim 128, multiplied chunks, whether wanted or not (docs/performance.md).
constexpr double kHopperRate = 407e12;
constexpr double kMmaRate = 222e12;

// Union of `queries` neighbours over the chunks of one, when every next query brings the same share of new ones.
double ratio_of(double queries, double turnover) { return 1.0 + (queries - 1.0) * turnover; }

}  // namespace

Path choose_union_path(Path path, const LayerShape& shape, double union_ratio) {
  if (path != Path::kHopper) return path;
  const double tile = 128.0 / shape.group, half = tile / 2, warp = tile / 8;
  if (tile <= 1.0) return path;  // one query a tile: nothing is multiplied in vain
  const double turnover = (union_ratio - 1.0) / (tile - 1.0);
  const double hopper_time = ratio_of(half, turnover) / kHopperRate;
  const double mma_time = ratio_of(warp < 1.0 ? 1.0 : warp, turnover) / kMmaRate;
  return mma_time < hopper_time ? Path::kMma : Path::kHopper;
}

}  // namespace ringmark::kernels::cuda
