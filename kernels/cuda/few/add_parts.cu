// One thread block a (row, head): the window and what was chosen, each with its weight.
#include <cuda_runtime.h>

#include "kernels/cuda/few/parts.h"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda::few {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(std::int32_t head_dim, std::int32_t parts, PartRoom room, const float* window_weight, float* out) {
  const std::int64_t pair = blockIdx.x;
  const float2* masses = room.mass + pair * kMostParts;
  if (!(masses[0].y > 0.0f)) return;  // nothing was chosen
  const float weight = window_weight[pair];
  for (int channel = threadIdx.x; channel < head_dim; channel += kThreads) {
    float& value = out[pair * head_dim + channel];
    // An empty window has weight 0, and its result may be anything.
    float mixed = weight != 0.0f ? weight * value : 0.0f;
    for (int part = 0; part < parts && masses[part].y > 0.0f; ++part) {
      mixed += room.out[(pair * kMostParts + part) * head_dim + channel];
    }
    value = mixed;
  }
}

}  // namespace

void add_parts(const LayerShape& shape, RowRange rows, std::int32_t parts, const PartRoom& room,
               const float* window_weight, float* out, cudaStream_t stream) {
  const std::int64_t first = rows.begin * shape.heads;
  add_parts_kernel<<<grid_size(rows.size() * shape.heads), kThreads, 0, stream>>>(
      shape.head_dim, parts, room, window_weight + first, out + first * shape.head_dim);
  ringmark::cuda::check_launch("add_parts");
}

}  // namespace ringmark::kernels::cuda::few
