// One warp a (row, head). The landmarks of the chosen chunks come into shared memory side by side, so that their bytes
// are on the way together; then every lane has the chain of one of them.
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include "kernels/cuda/few/attend.h"
#include "kernels/cuda/landmark_score.cuh"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda::few {
namespace {

constexpr int kWarps = 2;
constexpr int kSlots = 16;  // landmarks at a time
constexpr int kWord = 4;    // floats
constexpr int kStride = kMaxHeadDim + kWord;

struct Scratch {
  alignas(16) float query[kMaxHeadDim];
  alignas(16) float keys[kSlots][kStride];
};

struct Scoring {
  LayerShape shape;
  const std::byte* queries;
  RowRange rows;
  const std::int32_t* selection;
  const float* const* records;
  float* chosen_scores;
};

// Of landmarks of one vector. Keys that do not begin on a word are read where they are.
__device__ void score_single(const Scoring& s, const std::int32_t* chosen, std::int32_t landmark_head, float* scores,
                             Scratch& scratch, int lane) {
  const std::int32_t head_dim = s.shape.head_dim, words = head_dim / kWord;
  const auto key_of = [&](std::int32_t chunk) { return s.records[chunk] + landmark_head * head_dim; };
  for (std::int32_t first = 0; first < s.shape.topk && chosen[first] >= 0; first += kSlots) {
    const std::int32_t count = min(kSlots, s.shape.topk - first);
    bool staged = head_dim % kWord == 0;
    for (std::int32_t slot = 0; slot < count && chosen[first + slot] >= 0; ++slot) {
      const float* key = key_of(chosen[first + slot]);
      if (reinterpret_cast<std::uintptr_t>(key) % 16 != 0) staged = false;
      if (!staged) break;
      for (int word = lane; word < words; word += 32) {
        __pipeline_memcpy_async(&scratch.keys[slot][word * kWord], key + word * kWord, 16);
      }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    if (lane < count && chosen[first + lane] >= 0) {
      const float* record = s.records[chosen[first + lane]];
      const float* key = staged ? scratch.keys[lane] : key_of(chosen[first + lane]);
      const float bias = record[s.shape.landmark_heads * head_dim + landmark_head];
      scores[first + lane] = __fadd_rn(chain_product(scratch.query, key, head_dim), bias);
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(32 * kWarps) score_chosen_kernel(const __grid_constant__ Scoring s) {
  __shared__ Scratch shared[kWarps];
  const LayerShape& shape = s.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kWarps + warp;
  const std::int64_t row = s.rows.begin + pair / shape.heads;
  if (row >= s.rows.end) return;
  const auto head = static_cast<std::int32_t>(pair % shape.heads);
  const std::int32_t* chosen = s.selection + (row * shape.kv_heads + head / shape.group) * shape.topk;
  float* scores = s.chosen_scores + (row * shape.heads + head) * shape.topk;
  Scratch& scratch = shared[warp];
  if (shape.landmark_vectors > 1) {
    return score_slots(shape, s.queries, s.records, row, head, chosen, scratch.query, scores, lane);
  }
  const std::int64_t first = (row * shape.heads + head) * shape.head_dim;
  for (std::int32_t channel = lane; channel < shape.head_dim; channel += 32) {
    scratch.query[channel] = __fmul_rn(shape.scale, element(s.queries, shape.dtype, first + channel));
  }
  for (std::int32_t slot = lane; slot < shape.topk; slot += 32) {
    if (chosen[slot] < 0) scores[slot] = -__builtin_huge_valf();
  }
  __syncwarp();
  score_single(s, chosen, head / (shape.heads / shape.landmark_heads), scores, scratch, lane);
}

}  // namespace

void score_chosen(const LayerShape& shape, const std::byte* queries, RowRange rows, const std::int32_t* selection,
                  const float* const* records, float* chosen_scores, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  const Scoring scoring{shape, queries, rows, selection, records, chosen_scores};
  score_chosen_kernel<<<grid_size(ceil_div(rows.size() * shape.heads, kWarps)), 32 * kWarps, 0, stream>>>(scoring);
  ringmark::cuda::check_launch("score_chosen");
}

}  // namespace ringmark::kernels::cuda::few
