#include "kernels/cuda/selection.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void mark_kernel(LayerShape shape, const std::int32_t* selection, std::int64_t first, std::int64_t slots,
                            std::int64_t slots_a_group, std::int64_t words, std::uint32_t* bits) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < slots; n += stride) {
    const std::int32_t chunk = selection[first + n];
    if (chunk < 0) continue;
    const std::int64_t kv_head = n / shape.topk % shape.kv_heads;
    const std::int64_t block = std::int64_t{chunk} * shape.kv_heads + kv_head;
    std::uint32_t* word = bits + n / slots_a_group * words + block / 32;
    const std::uint32_t bit = 1u << (block % 32);
    // Neighbours mostly choose the same: a read is cheaper than an atomic that changes nothing.
    if ((*reinterpret_cast<volatile std::uint32_t*>(word) & bit) == 0) atomicOr(word, bit);
  }
}

}  // namespace

void mark_needed_blocks(const LayerShape& shape, const std::int32_t* selection, RowRange rows,
                        const NeededBlocks& needed, cudaStream_t stream) {
  const std::int64_t words = NeededBlocks::words_of(shape);
  const std::int64_t groups = (rows.size() + needed.group_rows - 1) / needed.group_rows;
  if (groups == 0 || words == 0) return;
  ringmark::cuda::check(cudaMemsetAsync(needed.bits, 0, static_cast<std::size_t>(groups * words) * 4, stream),
                        "clear the needed blocks");
  const std::int64_t row_slots = std::int64_t{shape.kv_heads} * shape.topk;
  if (row_slots == 0) return;
  const std::int64_t slots = rows.size() * row_slots;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((slots + kThreads - 1) / kThreads, 4096));
  mark_kernel<<<blocks, kThreads, 0, stream>>>(shape, selection, rows.begin * row_slots, slots,
                                               needed.group_rows * row_slots, words, needed.bits);
  ringmark::cuda::check_launch("mark_needed_blocks");
}

}  // namespace ringmark::kernels::cuda
