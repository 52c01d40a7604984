// Scores become logarithms of mixture weights. Bound by memory: scores of a (row, head) pair stay in registers when
// four a lane hold them all, and are read again from cache otherwise.
#include <cuda_runtime.h>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kInfinity = __builtin_huge_valf();

struct Weighing {
  float* scores;         // [pairs][topk]
  float* lse;            // [pairs]
  float* window_weight;  // [pairs]
  std::int64_t pairs;    // (row, head)
  std::int32_t topk;
};

// Over the kLanes lanes that share a pair.
template <int kLanes>
__device__ float largest_of(float value) {
#pragma unroll
  for (int bit = 1; bit < kLanes; bit *= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, bit));
  return value;
}
template <int kLanes>
__device__ float sum_of(float value) {
#pragma unroll
  for (int bit = 1; bit < kLanes; bit *= 2) value += __shfl_xor_sync(kAllLanes, value, bit);
  return value;
}

// What is subtracted from a score, in two steps so that nothing is lost to the rounding of their sum.
struct Mass {
  float top;
  float log_sum;
};

// Writes lse and the window's weight (one lane does). Without a score the window stays alone.
__device__ void weigh_window(const Weighing& w, std::int64_t pair, float lse, const Mass& mass, bool writes) {
  if (!writes) return;
  w.lse[pair] = mass.top + mass.log_sum;
  w.window_weight[pair] = expf((lse - mass.top) - mass.log_sum);
}

// topk a multiple of 4, at most 4 kLanes: one float4 a lane.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) weigh_few_kernel(Weighing w) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t pair = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  const bool exists = pair < w.pairs;
  const bool holds = exists && 4 * lane < w.topk;
  auto* place = reinterpret_cast<float4*>(w.scores + pair * w.topk) + lane;
  float4 scores{-kInfinity, -kInfinity, -kInfinity, -kInfinity};
  if (holds) scores = *place;
  const float lse = exists ? w.lse[pair] : -kInfinity;
  const float best = largest_of<kLanes>(fmaxf(fmaxf(scores.x, scores.y), fmaxf(scores.z, scores.w)));
  const bool chose = best != -kInfinity;
  const float top = chose ? fmaxf(best, lse) : 0.0f;
  const float own = (expf(scores.x - top) + expf(scores.y - top)) + (expf(scores.z - top) + expf(scores.w - top));
  const Mass mass{top, logf(sum_of<kLanes>(own) + expf(lse - top))};
  if (!chose) {
    if (exists && lane == 0) w.window_weight[pair] = 1.0f;
    return;
  }
  weigh_window(w, pair, lse, mass, lane == 0);
  scores.x = (scores.x - mass.top) - mass.log_sum;
  scores.y = (scores.y - mass.top) - mass.log_sum;
  scores.z = (scores.z - mass.top) - mass.log_sum;
  scores.w = (scores.w - mass.top) - mass.log_sum;
  if (holds) *place = scores;
}

// Any topk: one warp a pair.
__global__ void __launch_bounds__(kThreads) weigh_any_kernel(Weighing w) {
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (pair >= w.pairs) return;
  const int lane = threadIdx.x % 32;
  float* scores = w.scores + pair * w.topk;
  const float lse = w.lse[pair];
  float best = -kInfinity;
  for (int slot = lane; slot < w.topk; slot += 32) best = fmaxf(best, scores[slot]);
  best = largest_of<32>(best);
  if (best == -kInfinity) {
    if (lane == 0) w.window_weight[pair] = 1.0f;
    return;
  }
  const float top = fmaxf(best, lse);
  float own = 0.0f;
  for (int slot = lane; slot < w.topk; slot += 32) own += expf(scores[slot] - top);
  const Mass mass{top, logf(sum_of<32>(own) + expf(lse - top))};
  weigh_window(w, pair, lse, mass, lane == 0);
  for (int slot = lane; slot < w.topk; slot += 32) scores[slot] = (scores[slot] - mass.top) - mass.log_sum;
}

template <int kLanes>
void launch_few(const Weighing& w, cudaStream_t stream) {
  weigh_few_kernel<kLanes><<<grid_size(ceil_div(w.pairs * kLanes, kThreads)), kThreads, 0, stream>>>(w);
}

}  // namespace

void weigh_chunks(const LayerShape& shape, RowRange rows, float* chosen_scores, float* lse, float* window_weight,
                  cudaStream_t stream) {
  if (rows.empty()) return;
  const std::int64_t first = rows.begin * shape.heads;
  const Weighing w{chosen_scores + first * shape.topk, lse + first, window_weight + first, rows.size() * shape.heads,
                   shape.topk};
  if (shape.topk % 4 != 0 || shape.topk == 0 || shape.topk > 128) {
    weigh_any_kernel<<<grid_size(ceil_div(w.pairs * 32, kThreads)), kThreads, 0, stream>>>(w);
  } else if (shape.topk <= 8) {
    launch_few<2>(w, stream);
  } else if (shape.topk <= 16) {
    launch_few<4>(w, stream);
  } else if (shape.topk <= 32) {
    launch_few<8>(w, stream);
  } else if (shape.topk <= 64) {
    launch_few<16>(w, stream);
  } else {
    launch_few<32>(w, stream);
  }
  ringmark::cuda::check_launch("weigh_chunks");
}

}  // namespace ringmark::kernels::cuda
