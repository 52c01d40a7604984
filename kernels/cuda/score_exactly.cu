// Exact scoring on the plain cores. A thread block takes 32 (item, query head) pairs that share a landmark head, its
// rows, and walks the chunks that any of them may choose, a tile of 128 landmark vectors at a time: products as a
// register-tiled matrix product, each element one chain of fused multiply-adds; then every warp takes the scores of its
// own 8 rows into their sums and lists. Nothing but the lists leaves the chip.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/exact_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/log_sum.cuh"
#include "kernels/cuda/ranked_list.cuh"
#include "kernels/cuda/score.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kRowLanes = 8;               // lanes that take the scores of one row into its sum
constexpr int kPartRows = 32 / kRowLanes;  // rows of a warp whose scores stand in shared memory at a time
// Items among which those of one kv head are gathered: close in the list, so they see about the same chunks.
constexpr std::int64_t kWindowItems = 8192;
constexpr float kInfinity = __builtin_huge_valf();

struct Job {
  LayerShape shape;
  const RowGeometry* rows;
  const std::byte* queries;
  const ScoringItem* items;
  std::int64_t count;
  const float* const* records;
  Candidate* candidates;
  LogSum* sums;
  std::int64_t windows;
  std::int64_t blocks_per_head;  // of one landmark head, window of items and split
  ChunkSplits splits;

  __device__ int heads_per_landmark() const { return shape.heads / shape.landmark_heads; }
};

struct Row {
  DigitSum sum;
  std::int64_t index;  // item * group + head of the group; -1: no row
  std::int32_t begin;  // chunks it may choose
  std::int32_t end;
  std::int32_t held;  // the state of its RankedList
  std::int32_t waits;
  float gate;
};

// The score of a chunk of many vectors in the making.
struct ChunkSum {
  DigitSum sum;
  bool has_nan = false;
};

// Which part of the work a thread block has.
struct Part {
  std::int64_t first_item;
  std::int64_t end_item;
  std::int64_t first_row;   // among the rows of the window's items of the kv head
  std::int64_t first_list;  // of the part's split
  std::int32_t landmark_head;
  std::int32_t kv_head;
  std::int32_t first_chunk;  // of the split
  std::int32_t end_chunk;
};

struct Shared {
  Part part;
  HeadLandmarks landmarks;  // of the part's landmark head
  float bias[2][kColumns];  // of the columns, by parity of the tile
  alignas(16) float scores[kExactWarps][kPartRows][kColumns];
  Candidate waiting[kExactRows][RankedList::kWaiting];
  Row rows[kExactRows];
  std::int64_t query_of[kExactRows];  // first element
  std::int32_t found[kExactWarps];
};

static_assert(sizeof(Shared) % 16 == 0, "what stands behind it is read in words of 16 bytes");

// Behind Shared: ColumnSteps, queries [head_dim / 4, rounded up][kExactRows][4], then, for landmarks of many vectors, a
// ChunkSum a row.
constexpr int padded_dim(int head_dim) { return (head_dim + 3) / 4 * 4; }
template <int kDepth>
std::size_t shared_bytes(const LayerShape& shape) {
  return sizeof(Shared) + sizeof(ColumnSteps<kDepth>) +
         static_cast<std::size_t>(padded_dim(shape.head_dim)) * kExactRows * sizeof(float) +
         (shape.landmark_vectors > 1 ? kExactRows * sizeof(ChunkSum) : 0);
}

__device__ Part part_of_block(const Job& job) {
  const std::int64_t block = blockIdx.x / job.blocks_per_head;
  // Later rows see more chunks; the heaviest go first.
  const std::int64_t window = job.windows - 1 - block / job.shape.landmark_heads;
  Part part;
  part.first_item = window * kWindowItems;
  part.end_item = min(job.count, part.first_item + kWindowItems);
  part.first_row = blockIdx.x % job.blocks_per_head * kExactRows;
  part.landmark_head = static_cast<std::int32_t>(block % job.shape.landmark_heads);
  part.kv_head = part.landmark_head / (job.shape.landmark_heads / job.shape.kv_heads);
  part.first_list = blockIdx.y * job.count * job.shape.group;
  part.first_chunk = job.splits.first + static_cast<std::int32_t>(blockIdx.y) * job.splits.chunks;
  part.end_chunk = min(part.first_chunk + job.splits.chunks, job.shape.chunk_count);
  return part;
}

__device__ HeadLandmarks landmarks_of_head(const Job& job, std::int32_t head) {
  const std::int32_t key_floats = job.shape.landmark_vectors * job.shape.head_dim;
  return {job.records, head * key_floats, job.shape.landmark_heads * key_floats + head, job.shape.head_dim};
}

// Slot of the n-th row of a block: few rows are spread over its warps.
__device__ int slot_of(int n) { return n % kExactWarps * kWarpRows + n / kExactWarps; }

__device__ void set_row(const Job& job, std::int64_t item, int head_of_landmark, int slot, Shared& shared) {
  const std::int64_t row = job.items[item].row;
  const Part& part = shared.part;
  const int head = part.landmark_head * job.heads_per_landmark() + head_of_landmark;
  const std::int64_t index = part.first_list + item * job.shape.group + head % job.shape.group;
  const std::int32_t begin = max(job.rows[row].eligible_first, part.first_chunk);
  const std::int32_t end = min(job.rows[row].eligible_end, part.end_chunk);
  shared.rows[slot] = {DigitSum(), index, begin, end, 0, 0, RankedList::kOpenGate};
  shared.query_of[slot] = (row * job.shape.heads + head) * job.shape.head_dim;
}

// Finds the rows of the block; false when there are none. Every warp searches its share of the window's items.
__device__ bool collect_rows(const Job& job, Shared& shared, int warp, int lane) {
  const Part& part = shared.part;
  if (threadIdx.x < kExactRows) {
    shared.rows[threadIdx.x] = {DigitSum(), -1, 0, 0, 0, 0, RankedList::kOpenGate};
  }
  const std::int64_t first = part.first_item + warp * (kWindowItems / kExactWarps);
  const std::int64_t end = min(part.end_item, first + kWindowItems / kExactWarps);
  const auto matches = [&](std::int64_t item) {
    return __ballot_sync(kAllLanes, item < end && job.items[item].kv_head == part.kv_head);
  };
  int found = 0;
  for (std::int64_t item = first + lane; item - lane < end; item += 32) found += __popc(matches(item));
  if (lane == 0) shared.found[warp] = found;
  __syncthreads();
  const int share = job.heads_per_landmark();
  std::int64_t row = -part.first_row, total = 0;  // relative to the block's first
  for (int w = 0; w < kExactWarps; ++w) {
    if (w < warp) row += std::int64_t{shared.found[w]} * share;
    total += std::int64_t{shared.found[w]} * share;
  }
  if (total <= part.first_row) return false;
  for (std::int64_t item = first + lane; item - lane < end && row < kExactRows; item += 32) {
    const unsigned matching = matches(item);
    const std::int64_t own = row + std::int64_t{__popc(matching & ((1u << lane) - 1u))} * share;
    const bool matched = (matching >> lane & 1u) != 0;
    for (std::int64_t h = max(std::int64_t{0}, -own); matched && h < min(std::int64_t{share}, kExactRows - own); ++h) {
      set_row(job, item, static_cast<int>(h), slot_of(static_cast<int>(own + h)), shared);
    }
    row += std::int64_t{__popc(matching)} * share;
  }
  __syncthreads();
  return true;
}

__device__ void load_queries(const Job& job, const Shared& shared, float* queries, int warp, int lane) {
  const int padded = padded_dim(job.shape.head_dim);
  for (int slot = warp; slot < kExactRows; slot += kExactWarps) {
    for (int channel = lane; channel < padded; channel += 32) {
      const bool exists = shared.rows[slot].index >= 0 && channel < job.shape.head_dim;
      const float value = exists ? element(job.queries, job.shape.dtype, shared.query_of[slot] + channel) : 0.0f;
      queries[query_place(slot, channel)] = __fmul_rn(job.shape.scale, value);
    }
  }
}

// The terms of each chunk of a row become its score, which takes the place of the first ones.
__device__ void score_chunks_of_vectors(const TileWalk<true>& walk, std::int32_t tile, ChunkSum& chunk, float* scores,
                                        int lane) {
  const int columns = min(walk.vectors, kColumns);
  for (int c = 0; c < walk.tile_chunks; ++c) {
    float terms[kLaneColumns];
    bool has_nan = false;
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const int column = lane + 32 * j;
      const bool used = column < columns && tile % walk.chunk_tiles * kColumns + column < walk.vectors;
      terms[j] = used ? scores[c * columns + column] : -kInfinity;
      has_nan |= terms[j] != terms[j];
    }
    has_nan = __any_sync(kAllLanes, has_nan) || chunk.has_nan;
    LaneSum<32> sum(chunk.sum, largest_of_lanes<32>(fmaxf(fmaxf(terms[0], terms[1]), fmaxf(terms[2], terms[3]))));
    sum.add(terms);
    sum.finish(chunk.sum, lane);
    if (walk.ends_chunk(tile)) {
      const float score = has_nan ? __int_as_float(0x7FFFFFFF) : value_of(chunk.sum.log_sum());
      __syncwarp();  // all have read the sum
      if (lane == 0) {
        scores[c] = score;
        chunk.sum = DigitSum();
      }
      has_nan = false;
    }
    __syncwarp();
    if (lane == 0) chunk.has_nan = has_nan;
    __syncwarp();
  }
}

// The scores of `count` chunks from `first` on, of the rows of a part.
struct PartScores {
  float (*of)[kColumns];
  std::int32_t first;
  std::int32_t count;
};

__device__ RankedList list_of(const Job& job, Shared& shared, int slot) {
  const Row& row = shared.rows[slot];
  return {
      job.candidates + row.index * job.shape.topk, shared.waiting[slot], job.shape.topk, row.held, row.waits, row.gate};
}

__device__ void offer_scores(const Job& job, const PartScores& scores, Shared& shared, int slot, int r, int lane) {
  Row& row = shared.rows[slot];
  RankedList list = list_of(job, shared, slot);
  list.offer<kLaneColumns>(scores.of[r], scores.first, lane);
  if (lane == 0) {
    row.held = list.held;
    row.waits = list.waits;
    row.gate = list.gate;
  }
  __syncwarp();
}

// Takes the scores of a part into the sums and lists of its rows, the first of which is in `slot`.
__device__ void take_part(const Job& job, const PartScores& scores, Shared& shared, int slot, int lane) {
  const int r = lane / kRowLanes;
  Row& row = shared.rows[slot + r];
  // Every eighth group of four.
  float4* own = reinterpret_cast<float4*>(scores.of[r]) + lane % kRowLanes;
  constexpr int kFours = kColumns / 4 / kRowLanes;
  if (scores.count < kColumns || scores.first < row.begin || row.end < scores.first + kColumns) {
    for (int i = 0; i < 4 * kFours; ++i) {
      const int column = (i / 4 * kRowLanes + lane % kRowLanes) * 4 + i % 4, chunk = scores.first + column;
      const bool eligible = column < scores.count && row.begin <= chunk && chunk < row.end;
      if (!eligible) scores.of[r][column] = __int_as_float(0x7FFFFFFF);
    }
  }
  float largest = -kInfinity;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float4 four = own[i * kRowLanes];
    largest = fmaxf(largest, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
  }
  largest = largest_of_lanes<kRowLanes>(largest);
  LaneSum<kRowLanes> sum(row.sum, largest);
#pragma unroll 1
  for (int i = 0; i < kFours; ++i) {
    const float4 four = own[i * kRowLanes];
    sum.add({four.x, four.y, four.z, four.w});
  }
  sum.finish(row.sum, lane);
  const bool passes = row.index >= 0 && (row.held < job.shape.topk || largest > row.gate);
  const unsigned passing = __ballot_sync(kAllLanes, passes);
#pragma unroll 1
  for (int other = 0; other < kPartRows; ++other) {
    if ((passing >> (other * kRowLanes) & 1u) != 0) offer_scores(job, scores, shared, slot + other, other, lane);
  }
}

// The warp's products of a tile are complete.
template <bool kManyVectors>
__device__ void take_tile(const Job& job, const TileWalk<kManyVectors>& walk, std::int32_t tile,
                          const Products& products, Shared& shared, ChunkSum* chunk_sums, int warp, int lane) {
  float bias[kLaneColumns];
#pragma unroll
  for (int j = 0; j < kLaneColumns; ++j) bias[j] = shared.bias[tile % 2][lane + 32 * j];
  const PartScores scores{shared.scores[warp], walk.first_chunk(tile), walk.tile_chunks};
#pragma unroll 1
  for (int part = 0; part < kWarpRows / kPartRows; ++part) {
    const int slot = warp * kWarpRows + part * kPartRows;
    if (shared.rows[slot].index < 0) break;  // rows fill the slots of a warp from the first on
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (r / kPartRows != part) continue;
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        const bool unused = kManyVectors && bias[j] == -kInfinity;
        scores.of[r % kPartRows][lane + 32 * j] = unused ? -kInfinity : __fadd_rn(products[r][j], bias[j]);
      }
    }
    __syncwarp();
    if constexpr (kManyVectors) {
      for (int r = 0; r < kPartRows; ++r) {
        score_chunks_of_vectors(walk, tile, chunk_sums[slot + r], scores.of[r], lane);
      }
    }
    if (walk.ends_chunk(tile)) take_part(job, scores, shared, slot, lane);
    __syncwarp();
  }
}

__device__ void finish_rows(const Job& job, Shared& shared, int warp, int lane) {
  for (int slot = warp * kWarpRows; slot < (warp + 1) * kWarpRows; ++slot) {
    const Row& row = shared.rows[slot];
    if (row.index < 0) return;
    list_of(job, shared, slot).finish(lane);
    if (lane == 0) job.sums[row.index] = row.sum.log_sum();
  }
}

// Scores the rows that have been collected.
template <bool kManyVectors, int kDepth>
__device__ void score_rows(const Job& job, Shared& shared, ColumnSteps<kDepth>& columns, const float* queries,
                           ChunkSum* chunk_sums, int warp, int lane) {
  ChunkRange block_chunks, warp_chunks;
  int warp_rows = 0;
  for (int slot = 0; slot < kExactRows; ++slot) {
    const Row& row = shared.rows[slot];
    block_chunks.include(row.begin, row.end);
    if (slot / kWarpRows != warp) continue;
    warp_chunks.include(row.begin, row.end);
    if (row.index >= 0) ++warp_rows;
  }
  const TileWalk<kManyVectors> walk(block_chunks, job.shape.landmark_vectors);
  const std::int32_t tiles = walk.count(), head_dim = job.shape.head_dim;
  ColumnLoader<kDepth> loader;
  int stage = 0;
  if (tiles > 0) {
    loader.turn_to(shared.landmarks, walk, 0, shared.bias[0]);
    loader.load(0, head_dim, stage, columns);
  }
  for (std::int32_t tile = 0; tile < tiles; ++tile) {
    const bool works = walk.meets(tile, warp_chunks);
    Products products = {};
    for (int channel = 0; channel < head_dim; channel += kDepth, stage ^= 1) {
      __pipeline_wait_prior(0);
      __syncthreads();  // the step's keys are there, and nobody reads those of the step before
      if (channel + kDepth < head_dim) {
        loader.load(channel + kDepth, head_dim, stage ^ 1, columns);
      } else if (tile + 1 < tiles) {
        loader.turn_to(shared.landmarks, walk, tile + 1, shared.bias[(tile + 1) % 2]);
        loader.load(0, head_dim, stage ^ 1, columns);
      }
      if (!works) continue;
      multiply_step<kDepth>(warp_rows, queries + query_place(warp * kWarpRows, channel), columns.keys[stage],
                            min(kDepth, head_dim - channel), lane, products);
    }
    if (works) take_tile(job, walk, tile, products, shared, chunk_sums, warp, lane);
  }
}

template <bool kManyVectors, int kDepth>
__global__ void __launch_bounds__(kExactThreads, kManyVectors || kDepth > kComputeDepth ? 3 : 4)
    score_exactly_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(16) std::byte dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  auto& columns = *reinterpret_cast<ColumnSteps<kDepth>*>(dynamic + sizeof(Shared));
  float* queries = reinterpret_cast<float*>(dynamic + sizeof(Shared) + sizeof columns);
  auto* chunk_sums = reinterpret_cast<ChunkSum*>(queries + padded_dim(job.shape.head_dim) * kExactRows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    shared.part = part_of_block(job);
    shared.landmarks = landmarks_of_head(job, shared.part.landmark_head);
  }
  __syncthreads();
  // Once, unless the items of the window are mostly of one kv head.
  while (collect_rows(job, shared, warp, lane)) {
    if (kManyVectors && threadIdx.x < kExactRows) chunk_sums[threadIdx.x] = ChunkSum();
    load_queries(job, shared, queries, warp, lane);
    score_rows<kManyVectors>(job, shared, columns, queries, chunk_sums, warp, lane);
    finish_rows(job, shared, warp, lane);
    __syncthreads();  // nobody reads these rows any more
    if (threadIdx.x == 0) shared.part.first_row += job.blocks_per_head * kExactRows;
    __syncthreads();
  }
}

template <bool kManyVectors, int kDepth>
void launch(const Job& job, std::int64_t blocks, cudaStream_t stream) {
  const dim3 grid(grid_size(blocks), static_cast<unsigned int>(job.splits.count));
  const std::size_t bytes = shared_bytes<kDepth>(job.shape);
  ringmark::cuda::check(cudaFuncSetAttribute(score_exactly_kernel<kManyVectors, kDepth>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                        "reserve shared memory for exact scores");
  score_exactly_kernel<kManyVectors, kDepth><<<grid, kExactThreads, bytes, stream>>>(job);
  ringmark::cuda::check_launch("score_exactly");
}

}  // namespace

void score_exactly(const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                   const ScoringItem* items, std::int64_t count, const float* const* records, Candidate* candidates,
                   LogSum* sums, cudaStream_t stream) {
  score_splits_exactly(shape, geometry, queries, items, count, records, {0, shape.chunk_count, 1}, candidates, sums,
                       stream);
}

void score_splits_exactly(const LayerShape& shape, const Geometry& geometry, const std::byte* queries,
                          const ScoringItem* items, std::int64_t count, const float* const* records,
                          const ChunkSplits& splits, Candidate* candidates, LogSum* sums, cudaStream_t stream) {
  if (count == 0 || shape.landmark_heads == 0) return;
  const std::int64_t rows_per_item = shape.heads / shape.landmark_heads;
  // Room for a quarter more than an even share of the kv heads.
  const std::int64_t even_share = ceil_div(std::min(count, kWindowItems) * rows_per_item, shape.kv_heads);
  const std::int64_t blocks_per_head = ceil_div(even_share + even_share / 4, kExactRows) + (shape.kv_heads > 1 ? 1 : 0);
  const std::int64_t windows = ceil_div(count, kWindowItems);
  const Job job{shape,      geometry.rows, queries, items,           count, records,
                candidates, sums,          windows, blocks_per_head, splits};
  const std::int64_t blocks = windows * shape.landmark_heads * blocks_per_head;
  if (shape.landmark_vectors > 1) return launch<true, kComputeDepth>(job, blocks, stream);
  // Splits are for few rows, whose products are few too.
  splits.count > 1 ? launch<false, kMemoryDepth>(job, blocks, stream)
                   : launch<false, kComputeDepth>(job, blocks, stream);
}

}  // namespace ringmark::kernels::cuda
