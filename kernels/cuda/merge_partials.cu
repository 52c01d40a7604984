// The operations of kernels/cpu/merge_partials.cpp, to the bit of `out`. Bound by memory.
#include <cuda_runtime.h>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kEmptyLse = -__builtin_huge_valf();

struct Merging {
  float* into_out;
  float* into_lse;
  const float* other_out;
  const float* other_lse;
  std::int64_t pairs;  // (row, head)
  std::int32_t words;  // of a pair's channels
  std::int32_t lanes;  // threads a pair: a power of two, at most a warp
};

struct Shares {
  float into;
  float other;
  float lse;
};

// The larger side is measured from itself, so that its term is exactly 1.
__device__ Shares share(float into_lse, float other_lse) {
  const float top = fmaxf(into_lse, other_lse);
  const float into = exp_of_negative(__fsub_rn(into_lse, top));
  const float other = exp_of_negative(__fsub_rn(other_lse, top));
  const float sum = __fadd_rn(into, other);
  return {__fdiv_rn(into, sum), __fdiv_rn(other, sum), __fadd_rn(top, log1pf(fminf(into, other)))};
}

__device__ float mix(const Shares& shares, float into, float other) {
  return __fadd_rn(__fmul_rn(shares.into, into), __fmul_rn(shares.other, other));
}
__device__ float4 mix(const Shares& shares, const float4& into, const float4& other) {
  return {mix(shares, into.x, other.x), mix(shares, into.y, other.y), mix(shares, into.z, other.z),
          mix(shares, into.w, other.w)};
}

// Word: float or float4.
template <class Word>
__global__ void __launch_bounds__(kThreads) merge_partials_kernel(Merging m) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t pair = thread / m.lanes;
  const int lane = static_cast<int>(thread % m.lanes);
  const bool exists = pair < m.pairs;
  const float lse = exists ? m.into_lse[pair] : kEmptyLse;
  const float other_lse = exists ? m.other_lse[pair] : kEmptyLse;
  __syncwarp();  // all have read lse before one writes it
  if (!exists) return;
  auto* into = reinterpret_cast<Word*>(m.into_out) + pair * m.words;
  const auto* other = reinterpret_cast<const Word*>(m.other_out) + pair * m.words;
  if (lse == kEmptyLse) {
    for (int word = lane; word < m.words; word += m.lanes) into[word] = other_lse == kEmptyLse ? Word{} : other[word];
    if (lane == 0) m.into_lse[pair] = other_lse;
  } else if (other_lse != kEmptyLse) {
    const Shares shares = share(lse, other_lse);
    for (int word = lane; word < m.words; word += m.lanes) into[word] = mix(shares, into[word], other[word]);
    if (lane == 0) m.into_lse[pair] = shares.lse;
  }
}

template <class Word>
void launch(Merging m, std::int64_t head_dim, cudaStream_t stream) {
  m.words = static_cast<std::int32_t>(head_dim * 4 / static_cast<std::int64_t>(sizeof(Word)));
  m.lanes = 1;
  while (m.lanes < m.words && m.lanes < 32) m.lanes *= 2;
  merge_partials_kernel<Word><<<grid_size(ceil_div(m.pairs * m.lanes, kThreads)), kThreads, 0, stream>>>(m);
  ringmark::cuda::check_launch("merge_partials");
}

}  // namespace

void merge_partials(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, float* into_out, float* into_lse,
                    const float* other_out, const float* other_lse, cudaStream_t stream) {
  if (rows * heads == 0) return;
  const Merging m{into_out, into_lse, other_out, other_lse, rows * heads, 0, 0};
  head_dim % 4 == 0 ? launch<float4>(m, head_dim, stream) : launch<float>(m, head_dim, stream);
}

}  // namespace ringmark::kernels::cuda
