// One warp a (row, kv head) pair; the warps of a thread block take consecutive rows of one kv head, whose choices are
// much the same, so that most landmarks come from the first cache level.
#include <cuda_runtime.h>

#include "kernels/cuda/landmark_score.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps)
    score_chosen_kernel(const __grid_constant__ LayerShape shape, const std::byte* queries, RowRange rows,
                        const std::int32_t* selection, const float* const* records, float* chosen_scores) {
  __shared__ float query[kWarps][kMaxHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t row = rows.begin + std::int64_t{blockIdx.x} / shape.kv_heads * kWarps + warp;
  const auto kv_head = static_cast<std::int32_t>(blockIdx.x % shape.kv_heads);
  if (row >= rows.end) return;
  const std::int32_t* chosen = selection + (row * shape.kv_heads + kv_head) * shape.topk;
  for (std::int32_t head = kv_head * shape.group; head < (kv_head + 1) * shape.group; ++head) {
    float* scores = chosen_scores + (row * shape.heads + head) * shape.topk;
    score_slots(shape, queries, records, row, head, chosen, query[warp], scores, lane);
  }
}

}  // namespace

void score_chosen(const LayerShape& shape, const std::byte* queries, RowRange rows, const std::int32_t* selection,
                  const float* const* records, float* chosen_scores, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  const std::int64_t blocks = ceil_div(rows.size(), kWarps) * shape.kv_heads;
  score_chosen_kernel<<<grid_size(blocks), 32 * kWarps, 0, stream>>>(shape, queries, rows, selection, records,
                                                                     chosen_scores);
  ringmark::cuda::check_launch("score_chosen");
}

}  // namespace ringmark::kernels::cuda
