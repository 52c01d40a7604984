// The group rank over approximate lists, with error bounds. A lane has one (row, query head) pair; neighbouring lanes
// are the heads of a group. The lists, put in order, are merged by rank: the best front of the group's lists is picked
// again and again, and a chunk that comes up a second time is passed over. Then the least pick of every head must stay
// ahead of all that was not picked however the errors fall. Where it does not, the listed candidates are scored exactly
// and merged once more; what may then still be another chunk's, or hangs on the normalisers, stays open.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/choice_bounds.cuh"
#include "kernels/cuda/exact_lists.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/missing_scores.cuh"
#include "kernels/cuda/settling.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kMostWarps = 8;
constexpr int kSharedBytes = 44 * 1024;  // of a thread block: five of them fit

// The square of the norm of the lane's query: the warp reads four queries at a time.
template <DType kDType, int kHalves, int kGroup>
__device__ float query_square(const Settling& s, const Span<kGroup>& span, int lane) {
  float own = 0.0f;
#pragma unroll 4
  for (int four = 0; four < 8; ++four) {
    const int pair = min(4 * four + lane / 8, span.rows * kGroup - 1);
    const float square = square_of_eight<kDType, kHalves>(s.queries + span.of_rank(s, pair) * (kHalves * 128), lane);
    const float other = __shfl_sync(kAllLanes, square, lane % 4 * 8);
    if (lane / 4 == four) own = other;
  }
  return own;
}

// Copies the lists, two candidates at a time.
template <int kGroup>
__device__ void load_lists(const Settling& s, const Span<kGroup>& span, Scratch& scratch, int lane) {
  const auto* lists = reinterpret_cast<const int4*>(s.lists.candidates + span.of_range(s, 0) * s.lists.capacity);
  const int entries = span.rows * kGroup * s.lists.capacity;
  // Between the lists of the group in a row and those in the next one.
  const std::int64_t gap = std::int64_t{s.shape.heads - kGroup} * s.lists.capacity / 2;
#pragma unroll 5
  for (int entry = 2 * lane; entry < entries; entry += 64) {
    const int list = s.list_of_entry(entry);
    int4 two = lists[entry / 2 + list / kGroup * gap];
    if (two.y < 0) two.x = __float_as_int(-kInfinity);  // unused ones come last
    if (two.w < 0) two.z = __float_as_int(-kInfinity);
    auto* to = reinterpret_cast<int2*>(scratch.lists + entry + list);
    to[0] = {two.x, two.y};
    to[1] = {two.z, two.w};
  }
  __syncwarp();
}

// Nothing is picked yet.
__device__ void clear_picks(const Settling& s, Scratch& scratch, int lane) {
  for (int at = lane; at < 32 * s.score_stride(); at += 32) scratch.scores[at] = __uint_as_float(kMissing);
  for (int at = lane; at < s.groups() * s.pick_stride(); at += 32) scratch.picks[at] = kNoChunk;
  for (int at = lane; at < s.groups() * s.table_stride(); at += 32) scratch.table[at] = PickedChunks::kFree;
  __syncwarp();
}

// Merges the lists of the groups; returns how many chunks the lane's group picked.
template <int kGroup>
__device__ int pick(const Settling& s, Scratch& scratch, ListWalk& walk, PickedChunks& picked, int lane) {
  std::int32_t* picks = scratch.picks + lane / kGroup * s.pick_stride();
  int count = 0;
  for (int number = 0; number < s.shape.topk; ++number) {
    std::uint32_t best = walk.order;
#pragma unroll
    for (int distance = 1; distance < kGroup; distance *= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
    }
    if (__all_sync(kAllLanes, best == kNothing)) break;
    const unsigned fronts = __ballot_sync(kAllLanes, walk.order == best);
    const unsigned own_fronts = fronts >> (lane / kGroup * kGroup) & ((1u << kGroup) - 1u);
    const int winner = lane / kGroup * kGroup + __ffs(static_cast<int>(own_fronts)) - 1;
    const std::int32_t chunk = __shfl_sync(kAllLanes, walk.chunk, winner);
    const bool takes = best != kNothing && walk.chunk == chunk;  // the winner, and who has the same chunk in front
    if (takes) walk.keep_score(number);
    if (takes && walk.order == best) walk.least = best;
    if (best != kNothing) ++count;
    if (takes && lane == winner) {
      picks[number] = chunk;
      if (kGroup > 1) picked.insert(chunk, number);
    }
    __syncwarp();
    if (takes) walk.advance<(kGroup > 1)>(picked);
  }
  // What comes behind the front may be picked by another head.
  const ListWalk front = walk;
  while (walk.chunk >= 0) walk.advance<(kGroup > 1)>(picked);
  const int known = walk.known;
  walk = front;
  walk.known = known;
  __syncwarp();
  return count;
}

// The numbers of a group's picks, by ascending chunk.
template <int kGroup>
__device__ void sort_picks(const Settling& s, Scratch& scratch, int count, int lane) {
  const std::int32_t* picks = scratch.picks + lane / kGroup * s.pick_stride();
  std::int32_t* sorted = scratch.sorted + lane / kGroup * s.pick_stride();
  for (int number = lane % kGroup; number < count; number += kGroup) {
    const std::int32_t own = picks[number];
    int place = 0;
    for (int other = 0; other < s.pick_stride(); other += 4) {
      const int4 four = *reinterpret_cast<const int4*>(picks + other);
      place += (four.x < own ? 1 : 0) + (four.y < own ? 1 : 0) + (four.z < own ? 1 : 0) + (four.w < own ? 1 : 0);
    }
    sorted[place] = number;
  }
  __syncwarp();
}

// Four slots of the selection or of the scores at a time when topk allows. count < 0: open, not written.
template <int kSlots, int kGroup>
__device__ void write_choices(const Settling& s, const Span<kGroup>& span, const Scratch& scratch, int count,
                              int lane) {
  struct alignas(4 * kSlots) Chunks {
    std::int32_t of[kSlots];
  };
  struct alignas(4 * kSlots) Scores {
    float of[kSlots];
  };
  const int topk = s.shape.topk;
  for (int first = 0; first < 32 * topk; first += 32 * kSlots) {
    const int at = first + kSlots * lane, owner = s.list_of_score(at), place = at - owner * topk;
    const int picked = __shfl_sync(kAllLanes, count, owner);
    if (picked < 0) continue;
    const int picks = owner / kGroup * s.pick_stride();
    Scores row;
    Chunks chunks;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int number = place + i < picked ? scratch.sorted[picks + place + i] : -1;
      row.of[i] = number < 0 ? -kInfinity : scratch.scores[owner * s.score_stride() + number];
      chunks.of[i] = number < 0 ? -1 : scratch.picks[picks + number];
    }
    const std::int64_t pair = span.of_rank(s, owner);
    *reinterpret_cast<Scores*>(s.chosen_scores + pair * topk + place) = row;
    if (owner % kGroup == 0) *reinterpret_cast<Chunks*>(s.selection + pair / kGroup * topk + place) = chunks;
  }
}

template <int kGroup, DType kDType, int kHalves>
__global__ void __launch_bounds__(32 * kMostWarps, 3) settle_choices_kernel(const __grid_constant__ Settling s) {
  extern __shared__ __align__(16) std::byte dynamic[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_head = static_cast<int>(blockIdx.x % s.shape.kv_heads);
  const Span<kGroup> span(s, std::int64_t{blockIdx.x} / s.shape.kv_heads * (blockDim.x / 32) + warp, kv_head);
  if (span.rows == 0) return;
  const bool exists = lane < span.rows * kGroup;
  Scratch scratch(dynamic + warp * s.warp_bytes(), s);
  load_lists(s, span, scratch, lane);
  const float square = query_square<kDType, kHalves>(s, span, lane);
  Bounds bounds{0.0f, 0.0f, 0.0f, -kInfinity, true, false};
  if (exists) bounds = bounds_of(s, span, square, lane);

  PickedChunks picked = scratch.picked(s, lane / kGroup);
  Candidate* list = scratch.lists + lane * s.list_stride();
  ListWalk walk;
  int count = 0;
  bool open = exists;
  // Once more with exact lists where approximate ones leave the choice open.
#pragma unroll 1
  for (bool last = false;; last = true) {
    if (open) bounds.sound &= sort_list(list, s.lists.capacity, bounds.exact);
    clear_picks(s, scratch, lane);
    walk = {list, scratch.scores + lane * s.score_stride(), bounds.normaliser, exists ? s.lists.capacity : 0};
    walk.look();
    // Without any mass nothing can be listed.
    bounds.sound &= walk.chunk < 0 || bounds.normaliser > -kInfinity;
    count = pick<kGroup>(s, scratch, walk, picked, lane);
    const unsigned certain = __ballot_sync(kAllLanes, is_certain<kGroup>(s, bounds, walk, count));
    constexpr unsigned kGroupLanes = (1u << kGroup) - 1u;
    open = exists && (certain >> (lane / kGroup * kGroup) & kGroupLanes) != kGroupLanes;
    const unsigned lists = __ballot_sync(kAllLanes, open);
    if (last || lists == 0) break;
    score_lists_exactly(s, span, scratch, lists, lane);
    bounds.exact |= open;
  }
  const unsigned leaders = __ballot_sync(kAllLanes, open && lane % kGroup == 0);
  if (leaders != 0) {
    unsigned long long next = 0;
    if (lane == 0) next = atomicAdd(s.open_count, static_cast<unsigned long long>(__popc(leaders)));
    next = __shfl_sync(kAllLanes, next, 0) + __popc(leaders & ((1u << lane) - 1u));
    if (open && lane % kGroup == 0) s.open[next] = {span.row_of_rank(s, lane), kv_head, 0};
  }
  if (open || !exists) count = -1;
  if (__all_sync(kAllLanes, count < 0)) return;
  sort_picks<kGroup>(s, scratch, count, lane);
  if constexpr (kGroup > 1) {
    score_missing<kDType, kHalves>(s, span, scratch, __ballot_sync(kAllLanes, walk.known < count), square, lane);
  }
  s.shape.topk % 4 == 0 ? write_choices<4>(s, span, scratch, count, lane)
                        : write_choices<1>(s, span, scratch, count, lane);
}

template <int kGroup, DType kDType, int kHalves>
void launch(const Settling& settling, cudaStream_t stream) {
  const auto kernel = settle_choices_kernel<kGroup, kDType, kHalves>;
  const int warps = std::clamp(kSharedBytes / settling.warp_bytes(), 1, kMostWarps);
  const int bytes = warps * settling.warp_bytes();
  ringmark::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                        "reserve shared memory for choices");
  const std::int64_t blocks = ceil_div(settling.rows.size(), 32 / kGroup * warps) * settling.shape.kv_heads;
  kernel<<<grid_size(blocks), static_cast<unsigned int>(32 * warps), static_cast<std::size_t>(bytes), stream>>>(
      settling);
  ringmark::cuda::check_launch("settle_choices");
}

template <int kGroup>
void launch_group(const Settling& settling, cudaStream_t stream) {
  const bool wide = settling.shape.head_dim == 128;
  if (settling.shape.dtype == DType::kBfloat16) {
    return wide ? launch<kGroup, DType::kBfloat16, 2>(settling, stream)
                : launch<kGroup, DType::kBfloat16, 1>(settling, stream);
  }
  wide ? launch<kGroup, DType::kFloat16, 2>(settling, stream) : launch<kGroup, DType::kFloat16, 1>(settling, stream);
}

}  // namespace

void settle_choices(const LayerShape& shape, const std::byte* queries, RowRange rows, const LandmarkTiles& tiles,
                    const float* const* records, const ApproximateLists& lists, const float* lse_window,
                    std::int32_t* selection, float* chosen_scores, ScoringItem* open, unsigned long long* open_count,
                    cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  require(has_tensor_kernels(shape), "only layers with tensor core kernels have approximate lists");
  const auto per = [](std::int32_t count) { return static_cast<std::uint32_t>(ceil_div(1 << 20, count)); };
  const std::int32_t slots = shape.group == 1 ? 0 : std::bit_ceil(static_cast<std::uint32_t>(3 * shape.topk));
  const int landmark_shift = std::countr_zero(static_cast<std::uint32_t>(shape.heads / shape.landmark_heads));
  const Settling settling{shape,
                          queries,
                          rows,
                          tiles,
                          records,
                          lists,
                          lse_window,
                          selection,
                          chosen_scores,
                          open,
                          open_count,
                          slots,
                          per(lists.capacity),
                          per(shape.topk),
                          landmark_shift};
  switch (shape.group) {
    case 1: return launch_group<1>(settling, stream);
    case 2: return launch_group<2>(settling, stream);
    case 4: return launch_group<4>(settling, stream);
    case 8: return launch_group<8>(settling, stream);
    default: return launch_group<16>(settling, stream);
  }
}

}  // namespace ringmark::kernels::cuda
