#include "kernels/cuda/mma/attend.h"
#include "kernels/cuda/mma/dispatch.cuh"
#include "kernels/cuda/mma/key_block.cuh"
#include "kernels/cuda/mma/query_tile.cuh"
#include "kernels/cuda/mma/softmax.cuh"

namespace ringmark::kernels::cuda::mma {
namespace {

// A CTA does one half of a tile of the plan.
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = kWarps * 16;

struct Arguments {
  LayerShape shape;
  Geometry geometry;
  DeviceBlocks blocks;
  const std::byte* queries;
  RowRange rows;
  UnionPlan plan;
  const float* chosen_scores;
  const float* window_weight;
  float factor;  // of a product, for exponents in base 2
  float* out;
};

// One chunk of the walk.
struct Step {
  const std::byte* block;
  std::uint64_t members;  // bit q: query q of the half chose the chunk
  std::int16_t key_begin;
  std::int16_t key_end;
};

// Behind the two blocks in dynamic shared memory.
struct Scratch {
  TileShape tile;  // what is not needed in between takes no registers
  Step steps[kWarps][32];
};

template <int kHeadDim>
constexpr int kSharedBytes = 2 * kBlockBytes<kHeadDim> + static_cast<int>(sizeof(Scratch));

// The chunks that queries of the half chose, ascending; every warp walks for itself. Items are read 32 at a time, an
// item a lane, so that the latency of what hangs on them is paid once.
class ChosenWalk {
 public:
  __device__ ChosenWalk(const Arguments& a, int kv_head, std::int64_t tile, int half, Scratch& scratch)
      : a_(a), kv_head_(kv_head), half_(half), steps_(scratch.steps[warp_id()]) {
    const std::int64_t x = tile * a.shape.kv_heads + kv_head;
    next_ = a.plan.items + a.plan.offsets[x];
    left_ = static_cast<int>(a.plan.offsets[x + 1] - a.plan.offsets[x]);
  }

  // Goes to the next chunk, if there is one.
  __device__ bool advance() {
    for (; at_ + 1 >= held_; at_ = -1) {
      if (left_ <= 0) return false;
      load();
    }
    ++at_;
    return true;
  }

  // Where it stands, until the next advance().
  __device__ const Step& step() const { return steps_[at_]; }

 private:
  __device__ void load() {
    __syncwarp();  // the steps before are read
    const UnionItem& item = next_[lane_id()];
    const std::uint64_t members = lane_id() < left_ ? item.members[half_] : 0;
    const unsigned wanted = __ballot_sync(kAllLanes, members != 0);
    if (members != 0) {
      const int chunk = item.chunk;
      const ChunkGeometry geometry = a_.geometry.chunks[chunk];
      steps_[__popc(wanted & ((1u << lane_id()) - 1))] = {
          a_.blocks.table[std::int64_t{chunk} * a_.shape.kv_heads + kv_head_], members, geometry.key_begin,
          geometry.key_end};
    }
    held_ = __popc(wanted);
    next_ += 32;
    left_ -= 32;
    __syncwarp();
  }

  const Arguments& a_;
  const int kv_head_;
  const int half_;
  Step* steps_;
  const UnionItem* next_;
  int left_;
  int held_ = 0;
  int at_ = -1;
};

// s becomes the row's part of the result, times 2^kLift: its softmax inside the chunk times exp(score).
__device__ void weigh_row(BlockScores& s, int i, float factor, float score) {
  const float top = row_max(s, i) * factor;
  const float sum = quad_sum(exponentiate(s, i, factor, top == -kInfinity ? 0.0f : top));
  const float weight = sum > 0.0f ? exp2_approximate(score * kLog2E) * 0x1p15f / sum : 0.0f;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    s[n][2 * i] *= weight;
    s[n][2 * i + 1] *= weight;
  }
}

// next_score: that of rows without a chosen chunk, which stay as they are, is still the first.
template <int kHeadDim>
__device__ void add_to_rows(const Arguments& a, const TileShape& tile, const int (&next_score)[2],
                            const float (&out)[kHeadDim / 8][4]) {
  const LaneRows rows = lane_rows(tile);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (next_score[i] == rows.pair[i] * a.shape.topk) continue;
    const std::int64_t pair = tile.first_pair() + rows.pair[i];
    const float weight = a.window_weight[pair];
    float* row = a.out + pair * kHeadDim + 2 * (lane_id() % 4);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      float2* place = reinterpret_cast<float2*>(row + n * 8);
      float2 sum = make_float2(out[n][2 * i] * 0x1p-15f, out[n][2 * i + 1] * 0x1p-15f);  // without 2^kLift
      if (weight != 0.0f) {
        sum.x = fmaf(weight, place->x, sum.x);
        sum.y = fmaf(weight, place->y, sum.y);
      }
      *place = sum;
    }
  }
}

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 3) attend_chosen_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& scratch = *reinterpret_cast<Scratch*>(shared + 2 * kBlockBytes<kHeadDim>);

  const int half = static_cast<int>(blockIdx.x % 2);
  const std::int64_t index = blockIdx.x / 2 % a.plan.tiles;
  const auto kv_head = static_cast<int>(blockIdx.x / 2 / a.plan.tiles);
  const std::int64_t first = a.rows.begin + (2 * index + half) * (kRows / a.shape.group);
  const TileShape tile{a.shape.heads, a.shape.group, kv_head * a.shape.group, first, a.rows.end};
  ChosenWalk walk(a, kv_head, index, half, scratch);
  bool more = walk.advance();
  if (!more) return;

  if (threadIdx.x == 0) scratch.tile = tile;
  const auto stage = [&](std::uint32_t which) { return shared_address(shared) + which * kBlockBytes<kHeadDim>; };
  load_block<kHeadDim, kThreads>(stage(0), walk.step().block);
  const LaneRows rows = lane_rows(tile);
  std::uint32_t q[kHeadDim / 16][4];
  load_queries<kHeadDim>(q, a.queries, tile, rows);
  const float* scores = a.chosen_scores + tile.first_pair() * a.shape.topk;
  int next_score[2] = {rows.pair[0] * a.shape.topk, rows.pair[1] * a.shape.topk};

  float out[kHeadDim / 8][4] = {};
  for (std::uint32_t parity = 0; more; parity ^= 1) {
    const Step step = walk.step();
    const bool member[2] = {(step.members >> rows.query[0] & 1) != 0, (step.members >> rows.query[1] & 1) != 0};
    more = walk.advance();
    wait_for_copies();
    __syncthreads();  // the block is here for all, and all are done with the other stage
    if (more) load_block<kHeadDim, kThreads>(stage(parity ^ 1), walk.step().block);
    if (!__any_sync(kAllLanes, member[0] || member[1])) continue;
    float score[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) score[i] = member[i] ? scores[next_score[i]++] : -kInfinity;
    BlockScores s;
    multiply_keys<Element, kHeadDim>(s, q, stage(parity));
    if (step.key_end - step.key_begin < kChunk) mask_slots(s, step.key_begin, {step.key_end, step.key_end});
    weigh_row(s, 0, a.factor, score[0]);
    weigh_row(s, 1, a.factor, score[1]);
    multiply_values<kHeadDim>(out, s, stage(parity) + kBlockBytes<kHeadDim> / 2);
  }
  add_to_rows<kHeadDim>(a, scratch.tile, next_score, out);
}

}  // namespace

void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* /*selection*/,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream) {
  if (rows.empty()) return;
  const Arguments arguments{
      shape, geometry, blocks, queries, rows, plan, chosen_scores, window_weight, shape.scale * kLog2E, out};
  with_shape(shape, [&]<class Element, int kHeadDim>() {
    launch_kernel("attend_chosen (mma)", attend_chosen_kernel<Element, kHeadDim>, plan.tiles * shape.kv_heads * 2,
                  kThreads, kSharedBytes<kHeadDim>, stream, arguments);
  });
}

}  // namespace ringmark::kernels::cuda::mma
