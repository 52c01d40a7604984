// One thread block a (row, head): the parts of its window become one result.
#include <cuda_runtime.h>

#include "kernels/cuda/few/parts.h"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda::few {
namespace {

constexpr int kThreads = 128;
constexpr float kInfinity = __builtin_huge_valf();

__global__ void __launch_bounds__(kThreads)
    merge_parts_kernel(std::int32_t head_dim, std::int32_t parts, PartRoom room, float* out, float* lse) {
  const std::int64_t pair = blockIdx.x;
  const float2* masses = room.mass + pair * kMostParts;
  float top = -kInfinity;
  for (int part = 0; part < parts; ++part) {
    if (masses[part].y > 0.0f) top = fmaxf(top, masses[part].x);
  }
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) {
    if (masses[part].y > 0.0f) sum = fmaf(expf(masses[part].x - top), masses[part].y, sum);
  }
  for (int channel = threadIdx.x; channel < head_dim; channel += kThreads) {
    float mixed = 0.0f;
    for (int part = 0; part < parts; ++part) {
      if (!(masses[part].y > 0.0f)) continue;  // its values may be anything
      mixed = fmaf(expf(masses[part].x - top), room.out[(pair * kMostParts + part) * head_dim + channel], mixed);
    }
    out[pair * head_dim + channel] = sum > 0.0f ? mixed / sum : 0.0f;
  }
  if (threadIdx.x == 0) lse[pair] = sum > 0.0f ? top + logf(sum) : -kInfinity;
}

}  // namespace

void merge_parts(const LayerShape& shape, RowRange rows, std::int32_t parts, const PartRoom& room, float* out,
                 float* lse, cudaStream_t stream) {
  const std::int64_t first = rows.begin * shape.heads;
  merge_parts_kernel<<<grid_size(rows.size() * shape.heads), kThreads, 0, stream>>>(
      shape.head_dim, parts, room, out + first * shape.head_dim, lse + first);
  ringmark::cuda::check_launch("merge_parts");
}

}  // namespace ringmark::kernels::cuda::few
