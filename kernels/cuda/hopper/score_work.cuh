// Who scores what: work items, the landmark steps each of them walks, and the ring in which these arrive.
//
// An item is one query head and the rows of a tile, 64 a warpgroup. Landmarks pass in steps of 64 chunks, newest first.
// One warp loads them with bulk copies, both terms of a step at once, the other warps multiply. Thread blocks stay and
// go from item to item; the ring runs on across items.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exp2.cuh"
#include "kernels/cuda/hopper/primitives.cuh"
#include "kernels/cuda/score.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::hopper {

constexpr int kStepChunks = 64;
constexpr int kStepsOfTile = LandmarkTiles::kTileChunks / kStepChunks;
constexpr int kPieceBytes = kStepChunks * 128;  // 64 channels of one term of a step

struct ScoreCall {
  const RowGeometry* geometry = nullptr;
  const std::byte* queries = nullptr;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t row_tiles = 0;
  std::int32_t heads = 1;
  std::int32_t heads_of_landmark = 1;  // query heads that share a landmark head
  std::int32_t listed = 0;
  float scale = 1.0f;
  DType dtype = DType::kBfloat16;
  LandmarkTiles tiles;
  ApproximateLists lists;

  // Of arrays [rows of the call, H].
  __device__ std::int64_t pair(std::int64_t row, int head) const { return (row - row_begin) * heads + head; }
};

struct ScoreItem {
  int head = 0;
  std::int64_t first_row = 0;
  std::int64_t end_row = 0;  // at most tile_rows on
};

// The item of this thread block in a round; false when there is none, nor in any later round. One head after the other,
// whose landmarks then stay in the L2 cache; inside it the last rows first, which walk the most under a causal mask.
// Every other round runs backwards, so that no thread block has the longer walk each time.
__device__ inline bool item_of_round(const ScoreCall& call, int tile_rows, std::int64_t round, ScoreItem& item) {
  const std::int64_t blocks = gridDim.x;
  const std::int64_t place = round * blocks + (round % 2 == 0 ? blockIdx.x : blocks - 1 - blockIdx.x);
  if (place >= call.row_tiles * call.heads) return false;
  item.head = static_cast<int>(place / call.row_tiles);
  item.first_row = call.row_begin + (call.row_tiles - 1 - place % call.row_tiles) * tile_rows;
  item.end_row = item.first_row + tile_rows < call.row_end ? item.first_row + tile_rows : call.row_end;
  return true;
}

// Chunk ids or steps [first, end).
struct Span {
  int first = 0;
  int end = 0;

  __device__ bool empty() const { return first >= end; }
};

// Steps that some row of the item needs. By a whole warp.
__device__ inline Span steps_of_item(const ScoreCall& call, const ScoreItem& item, int lane) {
  Span chunks{INT_MAX, 0};
  for (std::int64_t row = item.first_row + lane; row < item.end_row; row += 32) {
    const RowGeometry& geometry = call.geometry[row];
    if (geometry.eligible_first >= geometry.eligible_end) continue;
    chunks.first = min(chunks.first, geometry.eligible_first);
    chunks.end = max(chunks.end, geometry.eligible_end);
  }
  chunks.first = __reduce_min_sync(kAllLanes, chunks.first);
  chunks.end = __reduce_max_sync(kAllLanes, chunks.end);
  if (chunks.empty()) return {};
  return {chunks.first / kStepChunks, (chunks.end - 1) / kStepChunks + 1};
}

// Stages hold both terms of a step: [hi, lo][d / 64][64 chunks][64 channels]. Biases, times log2(e), have one place
// more than there are stages: a consumer that has handed a stage back still reads its bias, and is done with it when it
// hands back the next.
template <int kHeadDim, int kStages_>
struct LandmarkRing {
  static constexpr int kStages = kStages_;
  static constexpr int kHalves = kHeadDim / 64;
  static constexpr int kTermBytes = kHalves * kPieceBytes;

  alignas(1024) std::byte terms[kStages][2 * kTermBytes];
  float2 bias[kStages + 1][kStepChunks / 2];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];

  // Where a thread is in the ring.
  struct Place {
    int stage = 0;
    int bias = 0;
    std::uint32_t parity = 0;

    __device__ void advance() {
      bias = bias == kStages ? 0 : bias + 1;
      if (++stage < kStages) return;
      stage = 0;
      parity ^= 1;
    }
  };

  __device__ void init(int consumer_warps) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 32);
      init_barrier(&empty[stage], 32 * consumer_warps);
    }
  }

  // A lane's two biases of a step, asked for ahead of load().
  __device__ static float2 fetch_bias(const LandmarkTiles& tiles, int landmark_head, int step, int lane) {
    const std::int64_t first =
        std::int64_t{landmark_head} * tiles.tiles * LandmarkTiles::kTileChunks + std::int64_t{step} * kStepChunks;
    return reinterpret_cast<const float2*>(tiles.bias + first)[lane];
  }

  // By a whole warp, every lane of which arrives: each has written a bias.
  __device__ void load(const Place& place, const LandmarkTiles& tiles, int landmark_head, int step, float2 lane_bias,
                       int lane) {
    std::uint64_t* barrier = &full[place.stage];
    wait_barrier(&empty[place.stage], place.parity ^ 1);
    bias[place.bias][lane] = make_float2(lane_bias.x * kLog2E, lane_bias.y * kLog2E);
    if (lane != 0) return arrive(barrier);
    arrive_and_expect(barrier, 2 * kTermBytes);
    const std::int64_t tile = std::int64_t{landmark_head} * tiles.tiles + step / kStepsOfTile;
    const std::byte* from = tiles.terms + tile * (kStepsOfTile * 2 * kTermBytes) + step % kStepsOfTile * kPieceBytes;
#pragma unroll
    for (int piece = 0; piece < 2 * kHalves; ++piece) {
      bulk_copy(terms[place.stage] + piece * kPieceBytes, from + piece * (kStepsOfTile * kPieceBytes), kPieceBytes,
                barrier);
    }
  }

  // By every lane of a consumer warp that has read the terms: each has read biases of the step before.
  __device__ void release(const Place& place) { arrive(&empty[place.stage]); }
};

}  // namespace ringmark::kernels::cuda::hopper
