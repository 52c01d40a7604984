#include "kernels/cuda/mma/attend.h"
#include "kernels/cuda/mma/dispatch.cuh"
#include "kernels/cuda/mma/interval_walk.cuh"
#include "kernels/cuda/mma/key_block.cuh"
#include "kernels/cuda/mma/query_tile.cuh"
#include "kernels/cuda/mma/softmax.cuh"

namespace ringmark::kernels::cuda::mma {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = kWarps * 16;

struct Arguments {
  LayerShape shape;
  Geometry geometry;
  DeviceBlocks blocks;
  const std::byte* queries;
  RowRange rows;
  std::int64_t tiles;  // a kv head
  float factor;        // of a product, for exponents in base 2
  float* out;
  float* lse;
};

// One chunk of the walk.
struct Step {
  const std::byte* block;
  int chunk;
  std::int16_t slots_end;
  std::int16_t sink_end;
};

// Behind the two blocks in dynamic shared memory.
struct Scratch {
  TileShape tile;           // what is not needed in between takes no registers
  RowGeometry rows[kRows];  // of the tile's queries
  Step steps[kWarps][32];
};

template <int kHeadDim>
constexpr int kSharedBytes = 2 * kBlockBytes<kHeadDim> + static_cast<int>(sizeof(Scratch));

// The chunks that the tile's queries need, ascending; every warp walks for itself. What the turn of a chunk will need
// is read 32 chunks at a time, a chunk a lane, so that its latency is paid once.
class WindowWalk {
 public:
  __device__ WindowWalk(const Arguments& a, int kv_head, int queries, Scratch& scratch)
      : a_(a), kv_head_(kv_head), queries_(queries), rows_(scratch.rows), steps_(scratch.steps[warp_id()]) {}

  // Goes to the next chunk, if there is one.
  __device__ bool advance() {
    const bool fresh = next_ == end_;
    if (fresh) {
      const Interval stretch = next_stretch(next_, 2 * queries_, [this](int n) { return interval(n); });
      next_ = stretch.begin;
      end_ = stretch.end;
      if (next_ == end_) return false;
    }
    if (fresh || next_ % 32 == 0) load();
    ++next_;
    return true;
  }

  // Where it stands, until the next advance().
  __device__ const Step& step() const { return steps_[(next_ - 1) % 32]; }

 private:
  __device__ Interval interval(int n) const {
    const RowGeometry& row = rows_[n % queries_];
    return n < queries_ ? Interval{row.sink_first, row.sink_last} : Interval{row.window_first, row.chunk + 1};
  }

  __device__ void load() {
    __syncwarp();  // the steps before are read
    const int chunk = next_ / 32 * 32 + lane_id();
    if (chunk >= next_ && chunk < end_) {
      const ChunkGeometry geometry = a_.geometry.chunks[chunk];
      steps_[lane_id()] = {a_.blocks.table[std::int64_t{chunk} * a_.shape.kv_heads + kv_head_], chunk,
                           geometry.slots_end, geometry.sink_end};
    }
    __syncwarp();
  }

  const Arguments& a_;
  const int kv_head_;
  const int queries_;
  const RowGeometry* rows_;
  Step* steps_;
  int next_ = 0;
  int end_ = 0;  // of the stretch
};

// How many slots of the chunk, from its first one, a row sees.
__device__ int visible_slots(const RowGeometry& row, const Step& step) {
  if (step.chunk == row.chunk) return min(row.visible, int{step.slots_end});
  if (step.chunk >= row.window_first && step.chunk < row.chunk) return step.slots_end;
  if (step.chunk >= row.sink_first && step.chunk < row.sink_last) return step.sink_end;
  return 0;
}

template <int kHeadDim>
__device__ void rescale(float (&out)[kHeadDim / 8][4], const float (&factor)[2]) {
  if (!__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[n][j] *= factor[j / 2];
  }
}

template <int kHeadDim>
__device__ void write_rows(const Arguments& a, const TileShape& tile, const OnlineSoftmax& softmax,
                           const float (&out)[kHeadDim / 8][4]) {
  const LaneRows rows = lane_rows(tile);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = quad_sum(softmax.sum[i]);
    if (rows.pair[i] < 0) continue;
    const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
    const std::int64_t pair = tile.first_pair() + rows.pair[i];
    float* row = a.out + pair * kHeadDim + 2 * (lane_id() % 4);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<float2*>(row + n * 8) = make_float2(out[n][2 * i] * share, out[n][2 * i + 1] * share);
    }
    if (lane_id() % 4 == 0) a.lse[pair] = sum > 0.0f ? (softmax.top[i] - kLift + log2f(sum)) * kLn2 : -kInfinity;
  }
}

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 3) attend_window_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& scratch = *reinterpret_cast<Scratch*>(shared + 2 * kBlockBytes<kHeadDim>);

  // The longest rows first: under a causal mask these are the last ones.
  const auto kv_head = static_cast<int>(blockIdx.x / a.tiles);
  const std::int64_t index = a.tiles - 1 - blockIdx.x % a.tiles;
  const int queries = kRows / a.shape.group;
  const TileShape tile{a.shape.heads, a.shape.group, kv_head * a.shape.group, a.rows.begin + index * queries,
                       a.rows.end};
  if (static_cast<int>(threadIdx.x) < queries) {
    const std::int64_t row = tile.first_row + threadIdx.x;
    RowGeometry nothing;
    nothing.chunk = -1;
    scratch.rows[threadIdx.x] = row < a.rows.end ? a.geometry.rows[row] : nothing;
  }
  if (threadIdx.x == 0) scratch.tile = tile;
  const LaneRows rows = lane_rows(tile);
  std::uint32_t q[kHeadDim / 16][4];
  load_queries<kHeadDim>(q, a.queries, tile, rows);
  __syncthreads();

  float out[kHeadDim / 8][4] = {};
  OnlineSoftmax softmax;
  WindowWalk walk(a, kv_head, queries, scratch);
  const auto stage = [&](std::uint32_t which) { return shared_address(shared) + which * kBlockBytes<kHeadDim>; };
  bool more = walk.advance();
  if (more) load_block<kHeadDim, kThreads>(stage(0), walk.step().block);
  for (std::uint32_t parity = 0; more; parity ^= 1) {
    const int seen[2] = {visible_slots(scratch.rows[rows.query[0]], walk.step()),
                         visible_slots(scratch.rows[rows.query[1]], walk.step())};
    more = walk.advance();
    wait_for_copies();
    __syncthreads();  // the block is here for all, and all are done with the other stage
    if (more) load_block<kHeadDim, kThreads>(stage(parity ^ 1), walk.step().block);
    if (!__any_sync(kAllLanes, seen[0] + seen[1] > 0)) continue;

    BlockScores s;
    multiply_keys<Element, kHeadDim>(s, q, stage(parity));
    if (__any_sync(kAllLanes, min(seen[0], seen[1]) < kChunk)) mask_slots(s, 0, seen);
    float earlier[2];
    softmax.take(s, a.factor, earlier);
    rescale<kHeadDim>(out, earlier);
    multiply_values<kHeadDim>(out, s, stage(parity) + kBlockBytes<kHeadDim> / 2);
  }
  write_rows<kHeadDim>(a, scratch.tile, softmax, out);
}

}  // namespace

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream) {
  if (rows.empty()) return;
  const std::int64_t tile_queries = kRows / shape.group;
  const std::int64_t tiles = ceil_div(rows.size(), tile_queries);
  const Arguments arguments{shape, geometry, blocks, queries, rows, tiles, shape.scale * kLog2E, out, lse};
  with_shape(shape, [&]<class Element, int kHeadDim>() {
    launch_kernel("attend_window (mma)", attend_window_kernel<Element, kHeadDim>, tiles * shape.kv_heads, kThreads,
                  kSharedBytes<kHeadDim>, stream, arguments);
  });
}

}  // namespace ringmark::kernels::cuda::mma
