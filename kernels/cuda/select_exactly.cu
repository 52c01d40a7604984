// The group rank over exact lists. One warp an item walks the lists of its heads from their best candidates on, as
// kernels::select_chunks does: the first time a chunk comes up it has its highest rank over the heads.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/landmark_score.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kMostWarps = 4;
constexpr std::int64_t kSharedBytes = 160 * 1024;
constexpr std::int64_t kNearCandidates = 512;
constexpr std::int32_t kNoChunk = 0x7FFFFFFF;

struct Choice {
  LayerShape shape;
  const std::byte* queries;
  const ScoringItem* items;
  std::int64_t count;
  const float* const* records;
  const Candidate* candidates;
  const LogSum* sums;
  const float* lse_window;
  std::int32_t* selection;
  float* chosen_scores;
  std::int32_t chosen_room;  // topk, rounded up to a power of two
  std::int32_t near_room;    // candidates of an item that come into shared memory; 0: they are read where they are

  // Shared memory of a warp.
  __host__ __device__ std::int64_t warp_bytes() const {
    return shape.group * std::int64_t{sizeof(double) * 2 + sizeof(std::int32_t) * 2} +
           (std::int64_t{chosen_room} + padded_dim()) * 4 + std::int64_t{near_room} * std::int64_t{sizeof(Candidate)};
  }
  __host__ __device__ std::int32_t padded_dim() const { return (shape.head_dim + 3) / 4 * 4; }
};

// One head's list, walked from its best candidate on; arrays over the heads of the group.
struct Walks {
  double* normaliser;
  double* rank;         // of the next candidate
  std::int32_t* chunk;  // of the next candidate; kNoChunk at the end
  std::int32_t* next;

  // Ranks are fp64 differences of fp32 values, so that two scores of one head never swap places.
  __device__ void step(const Choice& choice, const Candidate* lists, std::int32_t head) {
    const std::int32_t at = next[head]++;
    const std::int32_t topk = choice.shape.topk;
    const Candidate candidate = at < topk ? lists[std::int64_t{head} * topk + at] : Candidate{};
    chunk[head] = candidate.chunk < 0 ? kNoChunk : candidate.chunk;
    rank[head] = __dsub_rn(static_cast<double>(candidate.score), normaliser[head]);
  }
};

__device__ double log_add_exp(double a, double b) {
  const double most = fmax(a, b);
  return isinf(most) ? most : __dadd_rn(most, log1p(exp(__dsub_rn(fmin(a, b), most))));
}

struct Best {
  double rank = 0.0;
  std::int32_t chunk = kNoChunk;  // nothing yet
  std::int32_t head = 0;

  __device__ bool worse_than(const Best& other) const {
    if (other.chunk == kNoChunk) return false;
    return chunk == kNoChunk || other.rank > rank || (other.rank == rank && other.chunk < chunk);
  }
};

// The best next candidate of all walks; the same for all lanes.
__device__ Best best_of(const Walks& walks, std::int32_t group, int lane) {
  Best best;
  for (std::int32_t head = lane; head < group; head += 32) {
    const Best own{walks.rank[head], walks.chunk[head], head};
    if (best.worse_than(own)) best = own;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Best other{__shfl_down_sync(kAllLanes, best.rank, distance),
                     __shfl_down_sync(kAllLanes, best.chunk, distance),
                     __shfl_down_sync(kAllLanes, best.head, distance)};
    if (lane + distance < 32 && best.worse_than(other)) best = other;
  }
  best.rank = __shfl_sync(kAllLanes, best.rank, 0);
  best.chunk = __shfl_sync(kAllLanes, best.chunk, 0);
  best.head = __shfl_sync(kAllLanes, best.head, 0);
  return best;
}

__device__ bool contains(const std::int32_t* chosen, std::int32_t used, std::int32_t chunk, int lane) {
  bool found = false;
  for (std::int32_t i = lane; i < used; i += 32) found |= chosen[i] == chunk;
  return __any_sync(kAllLanes, found);
}

// Ascending; `count` is a power of two.
__device__ void sort(std::int32_t* values, std::int32_t count, int lane) {
  for (std::int32_t run = 2; run <= count; run *= 2) {
    for (std::int32_t distance = run / 2; distance > 0; distance /= 2) {
      for (std::int32_t i = lane; i < count / 2; i += 32) {
        const std::int32_t low = i / distance * distance * 2 + i % distance, high = low + distance;
        const std::int32_t a = values[low], b = values[high];
        if ((a > b) == ((low & run) == 0)) {
          values[low] = b;
          values[high] = a;
        }
      }
      __syncwarp();
    }
  }
}

// Returns how many were chosen.
__device__ std::int32_t choose(const Choice& choice, const Candidate* lists, Walks& walks, std::int32_t* chosen,
                               int lane) {
  std::int32_t used = 0;
  while (used < choice.shape.topk) {
    const Best best = best_of(walks, choice.shape.group, lane);
    if (best.chunk == kNoChunk) break;
    const bool is_new = !contains(chosen, used, best.chunk, lane);
    __syncwarp();
    if (lane == 0) {
      if (is_new) chosen[used] = best.chunk;
      walks.step(choice, lists, best.head);
    }
    __syncwarp();
    if (is_new) ++used;
  }
  return used;
}

__global__ void __launch_bounds__(32 * kMostWarps) select_exactly_kernel(const __grid_constant__ Choice choice) {
  extern __shared__ __align__(16) std::byte dynamic[];
  const LayerShape& shape = choice.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t n = std::int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
  if (n >= choice.count) return;
  Walks walks;
  walks.normaliser = reinterpret_cast<double*>(dynamic + warp * choice.warp_bytes());
  walks.rank = walks.normaliser + shape.group;
  walks.chunk = reinterpret_cast<std::int32_t*>(walks.rank + shape.group);
  walks.next = walks.chunk + shape.group;
  std::int32_t* chosen = walks.next + shape.group;
  auto* query = reinterpret_cast<float*>(chosen + choice.chosen_room);
  auto* near = reinterpret_cast<Candidate*>(query + choice.padded_dim());

  const ScoringItem item = choice.items[n];
  const Candidate* lists = choice.candidates + n * shape.group * shape.topk;
  for (std::int32_t i = lane; i < choice.near_room; i += 32) near[i] = lists[i];
  if (choice.near_room > 0) lists = near;
  __syncwarp();
  const std::int64_t first_head = item.row * shape.heads + item.kv_head * shape.group;
  for (std::int32_t head = lane; head < shape.group; head += 32) {
    const double all = shape.group == 1 ? 0.0 : value_of(choice.sums[n * shape.group + head]);
    // With one head the order of its scores is the group rank.
    walks.normaliser[head] = shape.group == 1 ? 0.0 : log_add_exp(choice.lse_window[first_head + head], all);
    walks.next[head] = 0;
    walks.step(choice, lists, head);
  }
  for (std::int32_t i = lane; i < choice.chosen_room; i += 32) chosen[i] = kNoChunk;
  __syncwarp();
  const std::int32_t used = choose(choice, lists, walks, chosen, lane);
  sort(chosen, choice.chosen_room, lane);

  std::int32_t* slots = choice.selection + (item.row * shape.kv_heads + item.kv_head) * shape.topk;
  for (std::int32_t i = lane; i < shape.topk; i += 32) slots[i] = chosen[i] = i < used ? chosen[i] : -1;
  __syncwarp();
  for (std::int32_t head = 0; head < shape.group && choice.chosen_scores != nullptr; ++head) {
    score_slots(shape, choice.queries, choice.records, item.row, item.kv_head * shape.group + head, chosen, query,
                choice.chosen_scores + (first_head + head) * shape.topk, lane);
  }
}

}  // namespace

void select_exactly(const LayerShape& shape, const std::byte* queries, const ScoringItem* items, std::int64_t count,
                    const float* const* records, const Candidate* candidates, const LogSum* sums,
                    const float* lse_window, std::int32_t* selection, float* chosen_scores, cudaStream_t stream) {
  if (count == 0 || shape.topk == 0) return;
  // At least four, so that the next warp's fp64 numbers stay aligned.
  const auto room = static_cast<std::int32_t>(std::bit_ceil(std::max(4u, static_cast<std::uint32_t>(shape.topk))));
  const std::int64_t listed = std::int64_t{shape.group} * shape.topk;
  const auto near_room = static_cast<std::int32_t>(listed <= kNearCandidates ? listed : 0);
  const Choice choice{shape, queries,    items,     count,         records, candidates,
                      sums,  lse_window, selection, chosen_scores, room,    near_room};
  const std::int64_t warps = std::clamp<std::int64_t>(kSharedBytes / choice.warp_bytes(), 1, kMostWarps);
  const std::int64_t bytes = warps * choice.warp_bytes();
  ringmark::cuda::check(
      cudaFuncSetAttribute(select_exactly_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "reserve shared memory for the group rank");
  select_exactly_kernel<<<grid_size(ceil_div(count, warps)), static_cast<unsigned int>(32 * warps),
                          static_cast<std::size_t>(bytes), stream>>>(choice);
  ringmark::cuda::check_launch("select_exactly");
}

}  // namespace ringmark::kernels::cuda
