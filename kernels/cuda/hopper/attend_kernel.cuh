// What both attention kernels are: the roles of the warps of a thread block, and the walk of a half over its tiles. The
// kernels differ in their pass, which says what blocks a tile needs, what they weigh, and what becomes of the sums:
//     Call      by value to the kernel; has grid, tile_counter and queries
//     Item      of the ring (block_ring.cuh)
//     Weights   of a tile and half (attend_pipeline.cuh), made of (call, tile, half)
//     load_blocks(ring, tiles, call)                      by one warp, for all tiles of the thread block
//     store<kHeadDim>(call, tile, half, weights, out)     by the half, once `out` holds all blocks of the tile
#pragma once

#include "kernels/cuda/hopper/attend_pipeline.cuh"
#include "kernels/cuda/hopper/attend_tile.cuh"
#include "kernels/cuda/hopper/block_ring.cuh"
#include "kernels/cuda/hopper/query_tile.cuh"
#include "kernels/cuda/hopper/tile_queue.cuh"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::hopper {

template <class Pass, int kHeadDim>
struct AttendShared {
  BlockRing<typename Pass::Item, kHeadDim> ring;
  QueryTile<kHeadDim> queries;
  TileQueue tiles;

  __device__ void init() {
    ring.init();
    queries.init();
    tiles.init();
  }
};

template <class Pass, class Element, int kHeadDim>
__device__ void attend_tiles(AttendShared<Pass, kHeadDim>& shared, const typename Pass::Call& call, int half) {
  using Weights = typename Pass::Weights;
  RingReader reader(shared.ring, half);
  TileReader tiles(shared.tiles, call.grid);
  Tile tile;
  while (tiles.next(tile)) {
    Weights weights(call, tile, half);
    std::uint32_t queries[kHeadDim / 16][4];
    wait_barrier(&shared.queries.full[half], tiles.parity());
    shared.queries.read(half, queries);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&shared.queries.empty[half]);

    float out[kHeadDim / 2] = {};
    reader.start_tile();
    ChunkPipeline<Element, kHeadDim, decltype(reader), Weights>(reader, weights, queries, out).run();
    Pass::template store<kHeadDim>(call, tile, half, weights, out);
  }
}

template <class Pass, class Element, int kHeadDim>
__global__ __launch_bounds__(kThreads, 1) void attend_kernel(const __grid_constant__ typename Pass::Call call) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<AttendShared<Pass, kHeadDim>*>(memory);
  if (threadIdx.x == 0) {
    shared.init();
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    give_registers<kLoaderRegisters>();
    const int warp = threadIdx.x / 32;
    const TileReader tiles(shared.tiles, call.grid);
    if (warp < kHalves) {
      shared.queries.load_tiles(tiles, call.grid, warp, call.queries);
    } else if (warp == kHalves) {
      Pass::load_blocks(shared.ring, tiles, call);
    } else if (threadIdx.x % 32 == 0) {
      shared.tiles.serve(call.grid, call.tile_counter);
    }
  } else {
    take_registers<kConsumerRegisters>();
    attend_tiles<Pass, Element, kHeadDim>(shared, call, warpgroup - 1);
  }
}

// `name` of the pass, for errors.
template <class Pass>
void launch_attend(const char* name, const LayerShape& shape, const typename Pass::Call& call, cudaStream_t stream) {
  with_shape(shape, [&]<class Element, int kHeadDim>() {
    const auto kernel = attend_kernel<Pass, Element, kHeadDim>;
    constexpr int kBytes = sizeof(AttendShared<Pass, kHeadDim>);
    ringmark::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name);
    kernel<<<resident_blocks(call.grid.tiles()), kThreads, kBytes, stream>>>(call);
    ringmark::cuda::check_launch(name);
  });
}

}  // namespace ringmark::kernels::cuda::hopper
