// Window and sinks of 128 rows at a time, exactly: online softmax over the chunks that any of the rows sees.
// Arithmetic limit: 1024 tensor core cycles a chunk at head_dim 128, against 512 for its exponentials; 32 KiB from L2.
#include "kernels/cuda/hopper/attend.h"
#include "kernels/cuda/hopper/attend_kernel.cuh"
#include "kernels/cuda/hopper/softmax.cuh"
#include "kernels/cuda/hopper/window_chunks.cuh"

namespace ringmark::kernels::cuda::hopper {
namespace {

struct WindowCall {
  TileGrid grid;
  std::uint32_t* tile_counter;
  Geometry geometry;
  DeviceBlocks blocks;
  const std::byte* queries;
  float scale;
  float* out;
  float* lse;
};

class WindowWeights {
 public:
  __device__ WindowWeights(const WindowCall& call, const Tile& tile, int half) : softmax_(call.scale * kLog2E) {
    const int valid_queries = call.grid.valid_queries(tile, half);
    const RowGeometry* rows = call.geometry.rows + call.grid.first_query(tile, half);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = thread_row(e) >> call.grid.group_shift;
      if (query < valid_queries) rows_[e].look(rows[query]);
    }
  }

  __device__ bool make(float (&scores)[32], const WindowItem& item, int half) {
    const View view = item.view[half];
    if (view == View::kAllButLast) {
      hide_last_key(scores);
    } else if (view == View::kAny) {
      hide_keys(scores, 0, {rows_[0].slots(item), rows_[1].slots(item)});
    }
    softmax_.add_chunk(scores);
    return softmax_.rescales();
  }
  template <int kCount>
  __device__ void correct(float (&out)[kCount]) const {
    softmax_.rescale(out);
  }
  __device__ void finish(float (&)[32]) const {}

  __device__ OnlineSoftmax& softmax() { return softmax_; }

 private:
  RowView rows_[2];
  OnlineSoftmax softmax_;
};

struct WindowPass {
  using Call = WindowCall;
  using Item = WindowItem;
  using Weights = WindowWeights;

  template <class Ring>
  __device__ static void load_blocks(Ring& ring, TileReader tiles, const Call& call) {
    const int lane = threadIdx.x % 32;
    RingWriter writer(ring);
    Tile tile;
    while (tiles.next(tile)) {
      writer.start_tile();
      const WindowChunks chunks(call.grid, call.geometry, tile);
      ChunkRun run = chunks.next_run(0);
      do {
        const int count = min(run.end - run.first, 32);
        const std::int32_t chunk = run.first + (lane < count ? lane : 0);
        const std::byte* block = call.blocks.table[std::int64_t{chunk} * call.grid.kv_heads + tile.kv_head];
        WindowItem item = chunks.item(chunk);
        run.first += count;
        if (run.empty()) run = chunks.next_run(run.end);
        item.last = lane + 1 == count && run.empty();
        writer.push(count, item, block);
      } while (!run.empty());
    }
  }

  template <int kHeadDim>
  __device__ static void store(const Call& call, const Tile& tile, int half, Weights& weights,
                               const float (&out)[kHeadDim / 2]) {
    OnlineSoftmax& softmax = weights.softmax();
    softmax.finish();
    const int valid_queries = call.grid.valid_queries(tile, half);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool valid = thread_row(e) >> call.grid.group_shift < valid_queries;
      const std::int64_t at = call.grid.row_and_head(tile, half, thread_row(e));
      const float normaliser = softmax.normaliser(e), lse = softmax.lse(e);
      float* row = call.out + at * kHeadDim + threadIdx.x % 4 * 2;
      if (valid) {
#pragma unroll
        for (int j = 0; j < kHeadDim / 8; ++j) {
          const float2 pair = {out[4 * j + 2 * e] * normaliser, out[4 * j + 2 * e + 1] * normaliser};
          *reinterpret_cast<float2*>(row + 8 * j) = pair;
        }
        call.lse[at] = lse;  // by the whole quad: one branch less
      }
    }
  }
};

}  // namespace

void attend_window(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                   const std::byte* queries, RowRange rows, float* out, float* lse, cudaStream_t stream) {
  if (rows.empty()) return;
  const WindowCall call{
      TileGrid(shape, rows), fresh_tile_counter(stream), geometry, blocks, queries, shape.scale, out, lse};
  launch_attend<WindowPass>("hopper::attend_window", shape, call, stream);
}

}  // namespace ringmark::kernels::cuda::hopper
