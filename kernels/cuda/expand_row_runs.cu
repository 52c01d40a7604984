// Bound by writing the rows.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_geometry.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// A warp a run: most have at most a chunk's rows.
__global__ void __launch_bounds__(kThreads)
    expand_row_runs_kernel(const RowRun* runs, std::int64_t count, RowGeometry* rows) {
  const std::int64_t n = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (n >= count) return;
  const RowRun run = runs[n];
  for (std::int64_t row = threadIdx.x % kWarp; row < run.rows; row += kWarp) {
    RowGeometry geometry = run.first;
    geometry.visible += static_cast<std::int32_t>(row);
    rows[run.first_row + row] = geometry;
  }
}

}  // namespace

void expand_row_runs(const RowRun* runs, std::int64_t count, RowGeometry* rows, cudaStream_t stream) {
  if (count == 0) return;
  expand_row_runs_kernel<<<grid_size(ceil_div(count * kWarp, kThreads)), kThreads, 0, stream>>>(runs, count, rows);
  ringmark::cuda::check_launch("expand_row_runs");
}

}  // namespace ringmark::kernels::cuda
