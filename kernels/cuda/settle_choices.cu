// The group rank over approximate lists, with error bounds. A lane has one (row, query head) pair; neighbouring lanes
// are the heads of a group. The lists, put in order, are merged by rank: the best front of the group's lists is picked
// again and again, and a chunk that comes up a second time is passed over. Then the least pick of every head must stay
// ahead of all that was not picked however the errors fall.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/list_walk.cuh"
#include "kernels/cuda/score.h"
#include "kernels/cuda/term_scores.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kMostWarps = 8;
constexpr int kSharedBytes = 44 * 1024;  // of a thread block: five of them fit
constexpr float kInfinity = __builtin_huge_valf();

// Rounding of an approximate score and of the exact one together, of |query| |key|. Both are sums whose partial sums
// stay well below that; 16 units cover the truncation of the matrix units at every step.
constexpr float kRounding = 16.0f * 0x1p-24f;
// Of the sum of up to 2^21 exponentials, relative.
constexpr float kSumError = 2e-6f;
// Covers the few roundings of one operation after another on numbers of a given size: bias, scale, rank.
constexpr float kPad = 0x1p-22f;

constexpr std::int32_t kNoChunk = 0x7FFFFFFF;
constexpr std::uint32_t kMissing = 0x7FFFFFFF;  // bits of a score that is not known; a NaN

struct Settling {
  LayerShape shape;
  const std::byte* queries;
  RowRange rows;
  LandmarkTiles tiles;
  ApproximateLists lists;
  const float* lse_window;
  std::int32_t* selection;
  float* chosen_scores;
  ScoringItem* open;
  unsigned long long* open_count;
  std::int32_t slots;          // of the table of picked chunks of a group
  std::uint32_t per_capacity;  // 2^20 / capacity and 2^20 / topk, rounded up: to divide numbers below 4096
  std::uint32_t per_topk;
  std::int32_t landmark_shift;  // log2 of the query heads of a landmark head

  __device__ int lane_of_entry(int entry) const { return static_cast<int>(entry * per_capacity >> 20); }
  __device__ int lane_of_score(int at) const { return static_cast<int>(at * per_topk >> 20); }
  // One more than the entries, so that lanes at the same place of their lists find all banks free.
  __host__ __device__ int list_stride() const { return lists.capacity + 1; }
  __host__ __device__ int score_stride() const { return shape.topk + 1; }
  __host__ __device__ int pick_stride() const { return (shape.topk + 3) / 4 * 4; }
  __host__ __device__ int groups() const { return 32 / shape.group; }
  // Shared memory of a warp.
  __host__ __device__ int warp_bytes() const {
    const int words = 64 * list_stride() + 32 * score_stride() + groups() * (2 * pick_stride() + slots);
    return (words + 3) / 4 * 16;
  }
};

struct Scratch {
  std::int32_t* picks;   // [groups][pick_stride] chunks, from the best on; behind them kNoChunk
  std::int32_t* sorted;  // [groups][pick_stride] numbers of picks, by ascending chunk
  Candidate* lists;      // [32][list_stride]
  float* scores;         // [32][score_stride] of picks; kMissing until known
  std::uint32_t* table;  // [groups][slots], PickedChunks

  __device__ Scratch(std::byte* memory, const Settling& s) {
    picks = reinterpret_cast<std::int32_t*>(memory);
    sorted = picks + s.groups() * s.pick_stride();
    lists = reinterpret_cast<Candidate*>(sorted + s.groups() * s.pick_stride());
    scores = reinterpret_cast<float*>(lists + 32 * s.list_stride());
    table = reinterpret_cast<std::uint32_t*>(scores + 32 * s.score_stride());
  }
};

// What a warp works on: 32 consecutive (row, head) pairs.
struct Span {
  std::int64_t first;  // of the range's rows
  int count;           // fewer at the end
  std::int64_t row;    // of the rank, and the head of the lane
  std::int32_t head;

  __device__ Span(const Settling& s, std::int64_t number, int lane) : first(32 * number) {
    const std::int64_t all = s.rows.size() * s.shape.heads;
    count = static_cast<int>(max(std::int64_t{0}, min(std::int64_t{32}, all - first)));
    row = s.rows.begin + first / s.shape.heads;
    head = static_cast<std::int32_t>(first % s.shape.heads) + lane;
    for (; head >= s.shape.heads; head -= s.shape.heads) ++row;
  }
  // Number of a lane's pair among those of the rank.
  __device__ std::int64_t of_rank(const Settling& s, int lane) const {
    return s.rows.begin * s.shape.heads + first + lane;
  }
};

// The square of the norm of the lane's query: the warp reads four queries at a time.
template <DType kDType, int kHalves>
__device__ float query_square(const Settling& s, const Span& span, int lane) {
  constexpr int kQueryBytes = kHalves * 128;
  const std::byte* queries = s.queries + span.of_rank(s, 0) * kQueryBytes;
  float own = 0.0f;
#pragma unroll 4
  for (int four = 0; four < 8; ++four) {
    const int pair = min(4 * four + lane / 8, span.count - 1);
    const float square = square_of_eight<kDType, kHalves>(queries + pair * kQueryBytes, lane);
    const float other = __shfl_sync(kAllLanes, square, lane % 4 * 8);
    if (lane / 4 == four) own = other;
  }
  return own;
}

// Of one head, in units of scores.
struct Bounds {
  float normaliser;
  float score_error;  // before kPad
  float normaliser_error;
  std::uint32_t cut;  // order of the rank that no unlisted chunk exceeds
  bool sound;         // all of them are numbers
};

__device__ Bounds bounds_of(const Settling& s, const Span& span, float square, int lane) {
  const float2 sum = s.lists.sum[span.first + lane];
  const float cut = s.lists.cut[span.first + lane];
  const int landmark_head = span.head >> s.landmark_shift;
  const float norms = s.tiles.residual_norm[landmark_head] + kRounding * s.tiles.key_norm[landmark_head];
  Bounds bounds;
  bounds.score_error = 1.001f * s.shape.scale * sqrtf(square) * norms;
  bounds.normaliser = bounds.normaliser_error = 0.0f;
  if (s.shape.group > 1) {
    const float lse = sum.y == 0.0f ? -kInfinity : sum.x + logf(sum.y);
    const float window = s.lse_window[span.of_rank(s, lane)];
    const float most = fmaxf(lse, window);
    bounds.normaliser = isinf(most) ? most : most + log1pf(expf(-fabsf(lse - window)));
    // The normaliser moves with lse by its share in it.
    if (lse > -kInfinity) {
      const float lse_error = bounds.score_error + kSumError + kPad * (fabsf(sum.x) + fabsf(lse));
      bounds.normaliser_error = 1.01f * expf(lse - bounds.normaliser) * lse_error;
    }
    bounds.normaliser_error += kPad * (fabsf(bounds.normaliser) + 1.0f);
  }
  bounds.cut = cut == -kInfinity ? kNothing : order_of(cut - bounds.normaliser);
  bounds.sound =
      sum.y == sum.y && cut == cut && bounds.normaliser == bounds.normaliser && bounds.score_error < kInfinity;
  return bounds;
}

// Copies the lists, two candidates at a time, and clears the rest.
__device__ void load_lists(const Settling& s, const Span& span, Scratch& scratch, int lane) {
  const auto* lists = reinterpret_cast<const int4*>(s.lists.candidates + span.first * s.lists.capacity);
  const int entries = span.count * s.lists.capacity;
#pragma unroll 5
  for (int entry = 2 * lane; entry < entries; entry += 64) {
    int4 two = lists[entry / 2];
    if (two.y < 0) two.x = __float_as_int(-kInfinity);  // unused ones come last
    if (two.w < 0) two.z = __float_as_int(-kInfinity);
    auto* to = reinterpret_cast<int2*>(scratch.lists + entry + s.lane_of_entry(entry));
    to[0] = {two.x, two.y};
    to[1] = {two.z, two.w};
  }
  for (int at = lane; at < 32 * s.score_stride(); at += 32) scratch.scores[at] = __uint_as_float(kMissing);
  for (int at = lane; at < s.groups() * s.pick_stride(); at += 32) scratch.picks[at] = kNoChunk;
  for (int at = lane; at < s.groups() * s.slots; at += 32) scratch.table[at] = PickedChunks::kFree;
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

// Whether the lane's head leaves no doubt: its picks rank before all that was not picked, however the errors fall.
// Inside one head the normaliser cancels.
template <int kGroup>
__device__ bool is_certain(const Settling& s, const Bounds& bounds, const ListWalk& walk, int count) {
  const std::uint32_t left = max(walk.order, bounds.cut);
  const float least = walk.least == ~kNothing ? kInfinity : value_at(walk.least);
  const float most = left == kNothing ? -kInfinity : value_at(left);
  float low = least, high = most;
  if (least != kInfinity) low -= kPad * (fabsf(least) + fabsf(bounds.normaliser)) + bounds.score_error;
  if (left != kNothing) high += kPad * (fabsf(most) + fabsf(bounds.normaliser)) + bounds.score_error;
  bool certain = bounds.sound;
  if (left != kNothing) certain = certain && count == s.shape.topk && low > high;
  if (least != kInfinity) low -= bounds.normaliser_error;
  if (left != kNothing) high += bounds.normaliser_error;
#pragma unroll
  for (int distance = 1; distance < kGroup; ++distance) {
    const float other = __shfl_xor_sync(kAllLanes, high, distance);
    certain = certain && (other == -kInfinity || low > other);
  }
  return certain;
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

// Fills in the scores of picks that the lists of their heads did not hold. count < 0: not wanted. square: of the norm
// of the lane's query.
template <DType kDType, int kHalves>
__device__ void score_missing(const Settling& s, const Span& span, Scratch& scratch, float square, int count, int known,
                              int lane) {
  for (unsigned heads = __ballot_sync(kAllLanes, known < count); heads != 0; heads &= heads - 1) {
    const int owner = __ffs(static_cast<int>(heads)) - 1;
    const int picked = __shfl_sync(kAllLanes, count, owner);
    const int landmark_head = __shfl_sync(kAllLanes, span.head, owner) >> s.landmark_shift;
    const float factor = s.shape.scale * s.tiles.exponent_scale[landmark_head];
    const float norm = sqrtf(__shfl_sync(kAllLanes, square, owner));
    const std::byte* query = s.queries + span.of_rank(s, owner) * (kHalves * 128);
    const std::int32_t* picks = scratch.picks + owner / s.shape.group * s.pick_stride();
    float* scores = scratch.scores + owner * s.score_stride();
    for (int first = 0; first < picked; first += 16) {
      const int upper = min(first + lane / 4, picked - 1), lower = min(first + lane / 4 + 8, picked - 1);
      const float2 both = scores_of_terms<kDType, kHalves>(TermRow::of<kHalves>(s.tiles, landmark_head, picks[upper]),
                                                           TermRow::of<kHalves>(s.tiles, landmark_head, picks[lower]),
                                                           query, norm, factor, lane);
      if (lane % 4 == 0 && __float_as_uint(scores[upper]) == kMissing) scores[upper] = both.x;
      if (lane % 4 == 1 && __float_as_uint(scores[lower]) == kMissing) scores[lower] = both.y;
    }
  }
  __syncwarp();
}

// Four slots of the selection or of the scores at a time when topk allows. count < 0: open, not written.
template <int kSlots>
__device__ void write_choices(const Settling& s, const Span& span, const Scratch& scratch, int count, int lane) {
  struct alignas(4 * kSlots) Chunks {
    std::int32_t of[kSlots];
  };
  struct alignas(4 * kSlots) Scores {
    float of[kSlots];
  };
  const int topk = s.shape.topk, group = s.shape.group;
  auto* selection = reinterpret_cast<Chunks*>(s.selection + span.of_rank(s, 0) / group * topk);
  auto* scores = reinterpret_cast<Scores*>(s.chosen_scores + span.of_rank(s, 0) * topk);
  for (int first = 0; first < 32 * topk; first += 32 * kSlots) {
    const int at = first + kSlots * lane, owner = s.lane_of_score(at), place = at - owner * topk;
    const int picked = __shfl_sync(kAllLanes, count, owner);
    if (picked < 0) continue;
    const int picks = owner / group * s.pick_stride();
    Scores row;
    Chunks chunks;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int number = place + i < picked ? scratch.sorted[picks + place + i] : -1;
      row.of[i] = number < 0 ? -kInfinity : scratch.scores[owner * s.score_stride() + number];
      chunks.of[i] = number < 0 ? -1 : scratch.picks[picks + number];
    }
    scores[at / kSlots] = row;
    if (owner % group == 0) selection[(owner / group * topk + place) / kSlots] = chunks;
  }
}

template <int kGroup, DType kDType, int kHalves>
__global__ void __launch_bounds__(32 * kMostWarps, 3) settle_choices_kernel(const __grid_constant__ Settling s) {
  extern __shared__ __align__(16) std::byte dynamic[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Span span(s, std::int64_t{blockIdx.x} * (blockDim.x / 32) + warp, lane);
  if (span.count == 0) return;
  const bool exists = lane < span.count;
  Scratch scratch(dynamic + warp * s.warp_bytes(), s);
  load_lists(s, span, scratch, lane);
  const float square = query_square<kDType, kHalves>(s, span, lane);
  Bounds bounds{0.0f, 0.0f, 0.0f, kNothing, true};
  if (exists) {
    bounds = bounds_of(s, span, square, lane);
    bounds.sound &= sort_list(scratch.lists + lane * s.list_stride(), s.lists.capacity);
  }

  PickedChunks picked{scratch.table + lane / kGroup * s.slots, s.slots};
  ListWalk walk{scratch.lists + lane * s.list_stride(), scratch.scores + lane * s.score_stride(), bounds.normaliser,
                exists ? s.lists.capacity : 0};
  walk.look();
  // Without any mass nothing can be listed.
  bounds.sound &= walk.chunk < 0 || bounds.normaliser > -kInfinity;
  int count = pick<kGroup>(s, scratch, walk, picked, lane);

  const unsigned certain = __ballot_sync(kAllLanes, is_certain<kGroup>(s, bounds, walk, count));
  constexpr unsigned kGroupLanes = (1u << kGroup) - 1u;
  const bool open = exists && (certain >> (lane / kGroup * kGroup) & kGroupLanes) != kGroupLanes;
  const unsigned leaders = __ballot_sync(kAllLanes, open && lane % kGroup == 0);
  if (leaders != 0) {
    unsigned long long next = 0;
    if (lane == 0) next = atomicAdd(s.open_count, static_cast<unsigned long long>(__popc(leaders)));
    next = __shfl_sync(kAllLanes, next, 0) + __popc(leaders & ((1u << lane) - 1u));
    if (open && lane % kGroup == 0) s.open[next] = {span.row, span.head / kGroup, 0};
  }
  if (open || !exists) count = -1;
  if (__all_sync(kAllLanes, count < 0)) return;
  sort_picks<kGroup>(s, scratch, count, lane);
  score_missing<kDType, kHalves>(s, span, scratch, square, count, walk.known, lane);
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
  const std::int64_t blocks = ceil_div(settling.rows.size() * settling.shape.heads, 32 * warps);
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
                    const ApproximateLists& lists, const float* lse_window, std::int32_t* selection,
                    float* chosen_scores, ScoringItem* open, unsigned long long* open_count, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  require(has_tensor_kernels(shape), "only layers with tensor core kernels have approximate lists");
  const auto per = [](std::int32_t count) { return static_cast<std::uint32_t>(ceil_div(1 << 20, count)); };
  const std::int32_t slots = shape.group == 1 ? 0 : std::bit_ceil(static_cast<std::uint32_t>(3 * shape.topk));
  const int landmark_shift = std::countr_zero(static_cast<std::uint32_t>(shape.heads / shape.landmark_heads));
  const Settling settling{shape,           queries,       rows, tiles,      lists, lse_window,
                          selection,       chosen_scores, open, open_count, slots, per(lists.capacity),
                          per(shape.topk), landmark_shift};
  switch (shape.group) {
    case 1: return launch_group<1>(settling, stream);
    case 2: return launch_group<2>(settling, stream);
    case 4: return launch_group<4>(settling, stream);
    case 8: return launch_group<8>(settling, stream);
    default: return launch_group<16>(settling, stream);
  }
}

}  // namespace ringmark::kernels::cuda
