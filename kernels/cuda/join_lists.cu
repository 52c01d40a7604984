// One warp a list. Lane n walks the list of part n from its best candidate on; the best of all lanes is taken until
// topk are, or none is left.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/log_sum.cuh"
#include "kernels/cuda/ranked_list.cuh"
#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr std::int32_t kNearCandidates = 1024;  // of a warp, in shared memory
constexpr std::int32_t kNoChunk = 0x7FFFFFFF;

struct Joining {
  std::int64_t lists;  // of a part
  std::int32_t topk;
  std::int32_t splits;
  const std::int32_t* ids;
  const Candidate* candidates;
  const LogSum* sums;
  Candidate* joined;
  LogSum* joined_sums;
};

// The end of a list ranks behind everything else.
__device__ Candidate candidate_at(const Joining& j, const Candidate* list, std::int32_t at) {
  const Candidate candidate = at < j.topk ? list[at] : Candidate{};
  return candidate.chunk < 0 ? Candidate{-__builtin_huge_valf(), kNoChunk} : candidate;
}

__device__ void join_candidates(const Joining& j, std::int64_t list, Candidate* near, int lane) {
  const Candidate* own_list = j.candidates + (lane * j.lists + list) * j.topk;
  if (j.splits * j.topk <= kNearCandidates) {
    for (std::int32_t i = lane; i < j.splits * j.topk; i += 32) {
      near[i] = j.candidates[(i / j.topk * j.lists + list) * j.topk + i % j.topk];
    }
    own_list = near + lane * j.topk;
    __syncwarp();
  }
  std::int32_t at = lane < j.splits ? 0 : j.topk;
  Candidate own = candidate_at(j, own_list, at);
  for (std::int32_t slot = 0; slot < j.topk; ++slot) {
    Candidate best = own;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const Candidate other = from_lane(best, lane ^ distance);
      if (ranks_before(other, best)) best = other;
    }
    const bool found = best.chunk != kNoChunk;
    if (lane == 0) {
      const std::int32_t id = found && j.ids != nullptr ? j.ids[best.chunk] : best.chunk;
      j.joined[list * j.topk + slot] = found ? Candidate{best.score, id} : Candidate{};
    }
    if (found && own.chunk == best.chunk) own = candidate_at(j, own_list, ++at);
  }
}

__device__ void join_sums(const Joining& j, std::int64_t list, int lane) {
  DigitSum sum;
  LogSum part;
  if (lane < j.splits) part = j.sums[lane * j.lists + list];
  // The highest place of all; digits two places below it count no more.
  std::int64_t place = part.place;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    place = max(place, __shfl_xor_sync(kAllLanes, place, distance));
  }
  if (part.place != LogSum::kEmpty) {
    sum = {part.place, static_cast<unsigned long long>(part.high), static_cast<unsigned long long>(part.low)};
    sum.raise(place);
  }
  const unsigned long long high = sum_of_lanes<32>(sum.high), low = sum_of_lanes<32>(sum.low);
  if (lane == 0) {
    j.joined_sums[list] = place == LogSum::kEmpty ? LogSum{} : DigitSum{place, high, low}.log_sum();
  }
}

__global__ void __launch_bounds__(32 * kWarps) join_lists_kernel(const __grid_constant__ Joining j) {
  __shared__ Candidate near[kWarps][kNearCandidates];
  const int warp = threadIdx.x / 32;
  const std::int64_t list = std::int64_t{blockIdx.x} * kWarps + warp;
  if (list >= j.lists) return;
  const int lane = threadIdx.x % 32;
  join_candidates(j, list, near[warp], lane);
  join_sums(j, list, lane);
}

}  // namespace

void join_lists(const LayerShape& shape, std::int64_t count, std::int32_t splits, const std::int32_t* ids,
                const Candidate* candidates, const LogSum* sums, Candidate* joined, LogSum* joined_sums,
                cudaStream_t stream) {
  require(splits >= 1 && splits <= ChunkSplits::kMost, "a lane has one part of the chunks");
  if (count == 0) return;
  const Joining joining{count * shape.group, shape.topk, splits, ids, candidates, sums, joined, joined_sums};
  join_lists_kernel<<<grid_size(ceil_div(joining.lists, kWarps)), 32 * kWarps, 0, stream>>>(joining);
  ringmark::cuda::check_launch("join_lists");
}

}  // namespace ringmark::kernels::cuda
