#include "kernels/cuda/selection.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// As in kernels/select_chunks.cpp: splitmix64 over a running state.
__device__ std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state += value + 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

__global__ void digest_kernel(LayerShape shape, const std::int32_t* selection, const std::int64_t* tokens,
                              std::int64_t pairs, unsigned long long* digest) {
  std::uint64_t sum = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t pair = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; pair < pairs; pair += stride) {
    std::uint64_t state = mix(static_cast<std::uint64_t>(tokens[pair / shape.kv_heads]),
                              static_cast<std::uint64_t>(pair % shape.kv_heads));
    for (std::int32_t slot = 0; slot < shape.topk; ++slot) {
      const std::int32_t chunk = selection[pair * shape.topk + slot];
      if (chunk < 0) break;
      state = mix(state, static_cast<std::uint64_t>(chunk));
    }
    sum += state;
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(digest, static_cast<unsigned long long>(sum));  // modulo 2^64: any order
}

}  // namespace

void add_selection_digest(const LayerShape& shape, const std::int32_t* selection, const std::int64_t* tokens,
                          std::int64_t rows, unsigned long long* digest, cudaStream_t stream) {
  const std::int64_t pairs = rows * shape.kv_heads;
  if (pairs == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((pairs + kThreads - 1) / kThreads, 4096));
  digest_kernel<<<blocks, kThreads, 0, stream>>>(shape, selection, tokens, pairs, digest);
  ringmark::cuda::check_launch("add_selection_digest");
}

}  // namespace ringmark::kernels::cuda
