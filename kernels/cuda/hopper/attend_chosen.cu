// The chosen chunks of 128 rows at a time: each block of their union is loaded once, each half computes those that one
// of its own queries chose. Weights are known beforehand, so the output is never rescaled.
// Arithmetic limit: as attend_window.cu, times the union's size over topk; L2 limit: 32 KiB a block of the union.
#include "kernels/cuda/hopper/attend.h"
#include "kernels/cuda/hopper/attend_kernel.cuh"
#include "kernels/cuda/hopper/chosen_weights.cuh"
#include "kernels/cuda/hopper/softmax.cuh"

namespace ringmark::kernels::cuda::hopper {
namespace {

struct ChosenCall {
  TileGrid grid;
  std::uint32_t* tile_counter;
  const ChunkGeometry* chunks;
  DeviceBlocks blocks;
  const std::byte* queries;
  const UnionItem* items;
  const std::int64_t* offsets;
  std::int32_t topk;
  float scale;
  const float* scores;         // [rows, H, topk]
  const float* window_weight;  // [rows, H]
  float* out;
};

struct ChosenItem {
  std::uint64_t members[kHalves] = {0, 0};  // which queries of the half chose the chunk
  std::int16_t key_begin = 0;
  std::int16_t key_end = 0;
  bool wanted[kHalves] = {false, false};
  bool last = false;

  __device__ bool wanted_by(int half) const { return wanted[half]; }
  __device__ void want(int half) { wanted[half] = true; }
};

// What a consumer thread knows of its two rows.
struct ThreadRows {
  int query[2];  // of the half: bit of ChosenItem::members
  float window_weight[2];
  RowScores scores[2];

  __device__ ThreadRows(const ChosenCall& call, const Tile& tile, int half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      query[e] = thread_row(e) >> call.grid.group_shift;
      const std::int64_t at = call.grid.row_and_head(tile, half, thread_row(e));
      const bool valid = query[e] < call.grid.valid_queries(tile, half);
      window_weight[e] = valid ? __ldg(call.window_weight + at) : 0.0f;
      scores[e].start(valid ? call.scores + at * call.topk : nullptr, call.topk);
    }
  }
};

// Softmax inside the chunk, times the mixture weight; 0 in rows that did not choose the chunk.
class ChosenWeights {
 public:
  __device__ ChosenWeights(const ChosenCall& call, const Tile& tile, int half)
      : rows_(call, tile, half), log2_scale_(call.scale * kLog2E) {}

  __device__ bool make(float (&scores)[32], const ChosenItem& item, int half) {
    const std::uint64_t members = item.members[half];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      weight_[e] = members >> rows_.query[e] & 1 ? rows_.scores[e].take() : 0.0f;
    }
    if (__any_sync(kAllLanes, weight_[0] != 0.0f || weight_[1] != 0.0f)) {
      hide_others(scores, item.key_begin, item.key_end);
      softmax_.exponentiate(scores, log2_scale_);
    } else {
      softmax_.skip();
    }
    return softmax_.unusual();
  }
  // A chunk without keys adds nothing.
  template <int kCount>
  __device__ void correct(float (&)[kCount]) {
    for (int e = 0; e < 2; ++e) {
      if (softmax_.sum(e) == 0.0f) weight_[e] = 0.0f;
    }
  }
  __device__ void finish(float (&scores)[32]) const { softmax_.weigh(scores, weight_); }

  __device__ const ThreadRows& rows() const { return rows_; }

 private:
  __device__ static void hide_others(float (&scores)[32], int begin, int end) {
    if (begin > 0 || end < kChunkKeys - 1) {
      hide_keys(scores, begin, {end, end});
    } else if (end < kChunkKeys) {
      hide_last_key(scores);
    }
  }

  ThreadRows rows_;
  float log2_scale_;
  float weight_[2];
  ChunkSoftmax softmax_;
};

struct ChosenPass {
  using Call = ChosenCall;
  using Item = ChosenItem;
  using Weights = ChosenWeights;

  template <class Ring>
  __device__ static void load_blocks(Ring& ring, TileReader tiles, const Call& call) {
    const int lane = threadIdx.x % 32;
    RingWriter writer(ring);
    Tile tile;
    while (tiles.next(tile)) {
      const std::int64_t* offsets = call.offsets + std::int64_t{tile.row_tile} * call.grid.kv_heads + tile.kv_head;
      writer.start_tile();
      std::int64_t next = offsets[0];
      const std::int64_t end = offsets[1];
      do {
        const int count = static_cast<int>(min(end - next, std::int64_t{32}));
        ChosenItem item;
        const std::byte* block = nullptr;
        if (lane < count) {
          const UnionItem& of_union = call.items[next + lane];
          const ChunkGeometry chunk = call.chunks[of_union.chunk];
          block = call.blocks.table[std::int64_t{of_union.chunk} * call.grid.kv_heads + tile.kv_head];
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            item.members[half] = of_union.members[half];
            item.wanted[half] = item.members[half] != 0;
          }
          item.key_begin = chunk.key_begin;
          item.key_end = chunk.key_end;
        }
        next += count;
        item.last = next == end && lane + 1 >= count;
        writer.push(max(count, 1), item, block);  // a tile that chose nothing still passes one item, to say so
      } while (next < end);
    }
  }

  // Rows that chose nothing are left alone. A window of weight 0 saw no key: its output, whatever it is, does not
  // count.
  template <int kHeadDim>
  __device__ static void store(const Call& call, const Tile& tile, int half, const Weights& weights,
                               const float (&out)[kHeadDim / 2]) {
    const ThreadRows& rows = weights.rows();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (rows.scores[e].taken() == 0) continue;
      const std::int64_t at = call.grid.row_and_head(tile, half, thread_row(e));
      float2* row = reinterpret_cast<float2*>(call.out + at * kHeadDim) + threadIdx.x % 4;
      float2 window[kHeadDim / 8];
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) window[j] = row[4 * j];
      const float weight = rows.window_weight[e];
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        if (weight == 0.0f) window[j] = {0.0f, 0.0f};
        constexpr float kDrop = 0x1p-15f;  // the weights' 2^kLift
        row[4 * j] = {fmaf(weight, window[j].x, out[4 * j + 2 * e] * kDrop),
                      fmaf(weight, window[j].y, out[4 * j + 2 * e + 1] * kDrop)};
      }
    }
  }
};

}  // namespace

void attend_chosen(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, const UnionPlan& plan, const std::int32_t* /*selection*/,
                   const float* chosen_scores, const float* window_weight, float* out, cudaStream_t stream) {
  if (rows.empty() || shape.topk == 0) return;
  const TileGrid grid(shape, rows);
  require(plan.tiles == grid.row_tiles && plan.tile_queries * shape.group == kTileRows,
          "the union plan is made of exactly the rows of the call");
  const ChosenCall call{grid,
                        fresh_tile_counter(stream),
                        geometry.chunks,
                        blocks,
                        queries,
                        plan.items,
                        plan.offsets,
                        shape.topk,
                        shape.scale,
                        chosen_scores,
                        window_weight,
                        out};
  launch_attend<ChosenPass>("hopper::attend_chosen", shape, call, stream);
}

}  // namespace ringmark::kernels::cuda::hopper
