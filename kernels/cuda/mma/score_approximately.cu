#include "kernels/cuda/fp16_queries.cuh"
#include "kernels/cuda/mma/candidate_list.cuh"
#include "kernels/cuda/mma/dispatch.cuh"
#include "kernels/cuda/mma/interval_walk.cuh"
#include "kernels/cuda/mma/query_tile.cuh"
#include "kernels/cuda/mma/score.h"

namespace ringmark::kernels::cuda::mma {
namespace {

// Landmarks pass in steps of 32 chunks, newest first: near ones tend to score high and close the gates early.
constexpr int kStep = 32;
constexpr int kStepsOfTile = LandmarkTiles::kTileChunks / kStep;
constexpr int kPieceBytes = kStep * 128;                           // one term of 64 channels of a step
constexpr int kTilePieceBytes = LandmarkTiles::kTileChunks * 128;  // of a whole tile

struct Arguments {
  LayerShape shape;
  const RowGeometry* geometry;
  const std::byte* queries;
  RowRange rows;
  LandmarkTiles tiles;
  ApproximateLists lists;
  std::int64_t row_tiles;  // a landmark head
};

template <int kHeadDim>
struct Stage {
  static constexpr int kPieces = 2 * kHeadDim / 64;
  unsigned char terms[kPieces][kPieceBytes];  // hi, then lo; 128-byte rows, swizzled
  float bias[kStep];
  float spare[32];  // keeps the next stage aligned to 256 bytes
};

template <int kHeadDim, int kWarps, int kLength>
struct Shared {
  Stage<kHeadDim> stages[2];
  std::uint64_t lists[kWarps * 16][kLength];
  Interval eligible[kWarps * 16];  // of the tile's queries
};

// The steps that the tile's queries need, in descending order; the same in every warp.
class StepWalk {
 public:
  __device__ StepWalk(const Interval* eligible, int queries, int steps)
      : eligible_(eligible), queries_(queries), steps_(steps) {}

  // Goes to the next step, if there is one.
  __device__ bool advance() {
    if (next_ == end_) {
      const Interval stretch = next_stretch(next_, queries_, [this](int n) { return descending(n); });
      next_ = stretch.begin;
      end_ = stretch.end;
      if (next_ == end_) return false;
    }
    ++next_;
    return true;
  }

  __device__ int step() const { return steps_ - next_; }

 private:
  // The steps of query n, counted from the last one down.
  __device__ Interval descending(int n) const {
    const Interval chunks = eligible_[n];
    if (chunks.end <= chunks.begin) return {};
    return {steps_ - (chunks.end + kStep - 1) / kStep, steps_ - chunks.begin / kStep};
  }

  const Interval* eligible_;
  int queries_;
  int steps_;
  int next_ = 0;
  int end_ = 0;
};

// lse of a lane's own scores of one row.
struct RunningSum {
  float top = -kInfinity;
  float sum = 0.0f;

  // NaN adds nothing, and what lies above LogSum::kLargestScore counts as that.
  __device__ void add(const float (&scores)[4][4], int i) {
    if (add_terms(scores, i, [](float score) { return score; })) return;
    add_terms(scores, i, [](float score) { return score != score ? -kInfinity : fminf(score, LogSum::kLargestScore); });
  }

 private:
  // False, and nothing added, when the sum is no number.
  template <class Tame>
  __device__ bool add_terms(const float (&scores)[4][4], int i, const Tame& tame) {
    float larger = top;
#pragma unroll
    for (int n = 0; n < 4; ++n) larger = fmaxf(larger, fmaxf(tame(scores[n][2 * i]), tame(scores[n][2 * i + 1])));
    if (larger == -kInfinity) return true;
    float terms = 0.0f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      terms += exp2_approximate((tame(scores[n][2 * i]) - larger) * kLog2E);
      terms += exp2_approximate((tame(scores[n][2 * i + 1]) - larger) * kLog2E);
    }
    if (!(terms < kInfinity)) return false;
    sum = sum * exp2_approximate((top - larger) * kLog2E) + terms;
    top = larger;
    return true;
  }
};

template <int kHeadDim, int kThreads>
__device__ void load_step(Stage<kHeadDim>& stage, const Arguments& a, int landmark_head, int step) {
  constexpr int kPieces = Stage<kHeadDim>::kPieces;
  const std::int64_t tile = std::int64_t{landmark_head} * a.tiles.tiles + step / kStepsOfTile;
  const std::byte* from = a.tiles.terms + tile * (kPieces * kTilePieceBytes) + step % kStepsOfTile * kPieceBytes;
  const auto own = static_cast<int>(threadIdx.x) * 16;
#pragma unroll
  for (int i = 0; i < kPieces * kPieceBytes / (kThreads * 16); ++i) {
    const int piece = i * kThreads * 16 / kPieceBytes, within = i * kThreads * 16 % kPieceBytes + own;
    copy_async(shared_address(stage.terms[piece]) + within, from + piece * kTilePieceBytes + within);
  }
  if (threadIdx.x >= kStep / 4) return;
  const float* bias = a.tiles.bias + std::int64_t{landmark_head} * a.tiles.tiles * LandmarkTiles::kTileChunks +
                      std::int64_t{step} * kStep + threadIdx.x * 4;
  copy_async(shared_address(stage.bias) + own, reinterpret_cast<const std::byte*>(bias));
}

// scores = factor q (hi + lo) + bias, a factor a row: scores[n] are chunks [8 n, 8 n + 8) of the step.
template <int kHeadDim>
__device__ void score_step(float (&scores)[4][4], const std::uint32_t (&q)[kHeadDim / 16][4],
                           const Stage<kHeadDim>& stage, const float (&factor)[2]) {
  // Matrices of one load: 8 chunks x channels [0, 8), x channels [8, 16), then the next 8 chunks.
  const int lane = lane_id();
  const std::uint32_t row = shared_address(stage.terms) + ((lane / 16) * 8 + lane % 8) * 128;
  const int column = (lane / 8 % 2) ^ (lane % 8);
#pragma unroll
  for (int n = 0; n < 4; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
    // The low terms first: the sums are cut at every step, by less while they are small.
#pragma unroll
  for (int term = 1; term >= 0; --term) {
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const std::uint32_t at = row + (term * (kHeadDim / 64) + k / 4) * kPieceBytes + ((column ^ (2 * (k % 4))) * 16);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        std::uint32_t b[4];
        load_matrices(b, at + n * 8 * 128);
        multiply_add<__half>(scores[n], q[k], b[0], b[1]);
        multiply_add<__half>(scores[n + 1], q[k], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 bias = *reinterpret_cast<const float2*>(stage.bias + n * 8 + 2 * (lane % 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[n][j] = fmaf(scores[n][j], factor[j / 2], j % 2 == 0 ? bias.x : bias.y);
  }
}

// -inf for chunks that the row may not choose.
__device__ void mask_chunks(float (&scores)[4][4], const Interval (&eligible)[2], int first_chunk) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int chunk = first_chunk + n * 8 + 2 * (lane_id() % 4) + j % 2;
      if (chunk < eligible[j / 2].begin || chunk >= eligible[j / 2].end) scores[n][j] = -kInfinity;
    }
  }
}

__device__ void write_sums(const Arguments& a, const LaneRows& rows, std::int64_t first_pair,
                           const RunningSum (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float top = quad_max(sums[i].top);
    const float sum = quad_sum(top == -kInfinity ? 0.0f : sums[i].sum * exp2_approximate((sums[i].top - top) * kLog2E));
    if (rows.pair[i] >= 0 && lane_id() % 4 == 0) a.lists.sum[first_pair + rows.pair[i]] = make_float2(top, sum);
  }
}

template <int kLength>
__device__ void write_lists(const Arguments& a, const LaneRows& rows, std::int64_t first_pair,
                            const RowLists<kLength>& lists) {
  for (int r = 0; r < 16; ++r) {
    const int pair = __shfl_sync(kAllLanes, r < 8 ? rows.pair[0] : rows.pair[1], r % 8 * 4);
    if (pair < 0) continue;
    int count;
    const WarpKeys<kLength> keys = lists.keys(r, count);
    int reached;
    const int listed = min(count, a.shape.topk + 4);
    const std::uint64_t least = count > listed ? keys.threshold(listed, listed, reached) : 1;
    Candidate* list = a.lists.candidates + (first_pair + pair) * a.lists.capacity;
    keys.each_from(least, [list](int rank, std::uint64_t key) { list[rank] = key_candidate(key); });
    for (int n = listed + lane_id(); n < a.lists.capacity; n += 32) list[n] = {-kInfinity, -1};
    const std::uint64_t rejected = keys.largest_below(least);
    if (lane_id() == 0) a.lists.cut[first_pair + pair] = rejected == 0 ? -kInfinity : key_score(rejected);
  }
}

template <class Element, int kHeadDim, int kWarps, int kLength>
__global__ void __launch_bounds__(kWarps * 32, 2) score_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadDim, kWarps, kLength>*>(memory);

  // The longest rows first: under a causal mask these are the last ones.
  const auto landmark_head = static_cast<int>(blockIdx.x / a.row_tiles);
  const std::int64_t index = a.row_tiles - 1 - blockIdx.x % a.row_tiles;
  const int sharing = a.shape.heads / a.shape.landmark_heads, queries = kWarps * 16 / sharing;
  const TileShape tile{a.shape.heads, sharing, landmark_head * sharing, a.rows.begin + index * queries, a.rows.end};
  if (static_cast<int>(threadIdx.x) < queries) {
    const std::int64_t row = tile.first_row + threadIdx.x;
    shared.eligible[threadIdx.x] =
        row < a.rows.end ? Interval{a.geometry[row].eligible_first, a.geometry[row].eligible_end} : Interval{};
  }
  const LaneRows rows = lane_rows(tile);
  std::uint32_t q[kHeadDim / 16][4];
  load_queries<kHeadDim>(q, a.queries, tile, rows);
  const float scale = a.shape.scale * a.tiles.exponent_scale[landmark_head];
  const float factor[2] = {scale * to_fp16<Element, 0>(q), scale * to_fp16<Element, 1>(q)};
  __syncthreads();

  const Interval eligible[2] = {shared.eligible[rows.query[0]], shared.eligible[rows.query[1]]};
  RunningSum sums[2];
  RowLists<kLength> lists(shared.lists[warp_id() * 16], a.shape.topk + 5);  // one more than is listed: the cut
  StepWalk walk(shared.eligible, queries, a.tiles.tiles * kStepsOfTile);
  bool more = walk.advance();
  if (more) load_step<kHeadDim, kWarps * 32>(shared.stages[0], a, landmark_head, walk.step());
  for (int parity = 0; more; parity ^= 1) {
    const int first = walk.step() * kStep;
    more = walk.advance();
    wait_for_copies();
    __syncthreads();  // the step is here for all, and all are done with the other stage
    if (more) load_step<kHeadDim, kWarps * 32>(shared.stages[parity ^ 1], a, landmark_head, walk.step());

    bool touched = false, whole = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      touched |= max(eligible[i].begin, first) < min(eligible[i].end, first + kStep);
      whole &= eligible[i].begin <= first && eligible[i].end >= first + kStep;
    }
    if (!__any_sync(kAllLanes, touched)) continue;
    float scores[4][4];
    score_step<kHeadDim>(scores, q, shared.stages[parity], factor);
    if (!__all_sync(kAllLanes, whole)) mask_chunks(scores, eligible, first);
    sums[0].add(scores, 0);
    sums[1].add(scores, 1);
    lists.offer(scores, first);
  }
  const std::int64_t first_pair = tile.first_pair() - a.rows.begin * a.shape.heads;
  write_sums(a, rows, first_pair, sums);
  write_lists<kLength>(a, rows, first_pair, lists);
}

template <class Element, int kHeadDim, int kWarps, int kLength>
void launch(Arguments arguments, cudaStream_t stream) {
  const LayerShape& shape = arguments.shape;
  const std::int64_t queries = kWarps * 16 / (shape.heads / shape.landmark_heads);
  arguments.row_tiles = ceil_div(arguments.rows.size(), queries);
  launch_kernel("score_approximately (mma)", score_kernel<Element, kHeadDim, kWarps, kLength>,
                arguments.row_tiles * shape.landmark_heads, kWarps * 32,
                static_cast<int>(sizeof(Shared<kHeadDim, kWarps, kLength>)), stream, arguments);
}

}  // namespace

void score_approximately(const LayerShape& shape, const Geometry& geometry, const std::byte* queries, RowRange rows,
                         const LandmarkTiles& tiles, const ApproximateLists& lists, cudaStream_t stream) {
  if (rows.empty()) return;
  const Arguments arguments{shape, geometry.rows, queries, rows, tiles, lists, 0};
  // Lists hold topk + 5 candidates and the 32 of a step; long ones leave room for half as many rows.
  with_shape(shape, [&]<class Element, int kHeadDim>() {
    if (shape.topk + 5 + kStep <= 64) {
      launch<Element, kHeadDim, 8, 64>(arguments, stream);
    } else {
      launch<Element, kHeadDim, 4, 128>(arguments, stream);
    }
  });
}

}  // namespace ringmark::kernels::cuda::mma
