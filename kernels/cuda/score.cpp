#include "kernels/cuda/score.h"

#include <algorithm>

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

namespace {

// Of score_exactly: pairs of row and head of a thread block, thread blocks of a multiprocessor.
constexpr std::int32_t kBlockPairs = 32;
constexpr std::int32_t kBlocks = 3;

}  // namespace

ChunkSplits ChunkSplits::of(const LayerShape& shape, Range<std::int32_t> eligible, std::int64_t rows, int processors) {
  constexpr std::int32_t kTile = 128;  // chunks
  const std::int64_t chunks = std::max(1, eligible.end - eligible.begin);
  const std::int64_t blocks =
      shape.landmark_heads * ((rows * shape.heads / shape.landmark_heads + kBlockPairs - 1) / kBlockPairs);
  const std::int64_t wanted = std::clamp<std::int64_t>(kBlocks * processors / blocks, 1, kMost);
  const std::int64_t tiles = (chunks + kTile - 1) / kTile;
  const std::int64_t length = (tiles + wanted - 1) / wanted * kTile;
  return {eligible.begin, static_cast<std::int32_t>(length), static_cast<std::int32_t>((chunks + length - 1) / length)};
}

std::int64_t ChunkSplits::most_lists(std::int64_t pairs, int processors) {
  return std::min(kMost * pairs, std::max(pairs, std::int64_t{kBlocks} * kBlockPairs * processors));
}

}  // namespace ringmark::kernels::cuda
