// Bound by the launch: a step has few rows.
#include <cuda_runtime.h>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Appending {
  const RowGeometry* rows;
  std::byte* const* blocks;
  const std::uint16_t* keys;
  const std::uint16_t* values;
  std::int32_t kv_heads;
  std::int32_t chunk_size;
  std::int32_t row_halves;  // of one kv head, two bytes each
};

__global__ void __launch_bounds__(kThreads) append_rows_kernel(Appending a) {
  const std::int64_t row = blockIdx.x;
  const RowGeometry place = a.rows[row];
  for (int i = threadIdx.x; i < a.kv_heads * a.row_halves; i += kThreads) {
    const int kv_head = i / a.row_halves, half = i % a.row_halves;
    auto* block = reinterpret_cast<std::uint16_t*>(a.blocks[std::int64_t{place.chunk} * a.kv_heads + kv_head]);
    std::uint16_t* key = block + (place.visible - 1) * a.row_halves + half;
    const std::int64_t from = row * a.kv_heads * a.row_halves + i;
    key[0] = a.keys[from];
    key[std::int64_t{a.chunk_size} * a.row_halves] = a.values[from];
  }
}

}  // namespace

void append_rows(const LayerShape& shape, const RowGeometry* rows, std::int64_t count, const std::byte* keys,
                 const std::byte* values, std::byte* const* blocks, cudaStream_t stream) {
  if (count == 0) return;
  const Appending appending{rows,
                            blocks,
                            reinterpret_cast<const std::uint16_t*>(keys),
                            reinterpret_cast<const std::uint16_t*>(values),
                            shape.kv_heads,
                            shape.chunk_size,
                            static_cast<std::int32_t>(shape.head_dim * size_of(shape.dtype) / 2)};
  append_rows_kernel<<<grid_size(count), kThreads, 0, stream>>>(appending);
  ringmark::cuda::check_launch("append_rows");
}

}  // namespace ringmark::kernels::cuda
