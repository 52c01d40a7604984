// The queries of a tile: to shared memory while the tile before is computed, then to registers, where they stay as the
// A operand of wgmma. From shared memory they would take half of its bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hopper/attend_tile.cuh"
#include "kernels/cuda/hopper/tile_queue.cuh"

namespace ringmark::kernels::cuda::hopper {

template <int kHeadDim>
struct QueryTile {
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kHalfBytes = kHalfRows * kRowBytes;

  // As BlockOrder::kSwizzled, [half][kHeadDim / 64][kHalfRows][128 bytes]: the eight rows that ldmatrix reads at once
  // lie on different banks.
  alignas(1024) std::byte rows[kHalves][kHalfBytes];
  std::uint64_t full[kHalves];
  std::uint64_t empty[kHalves];

  __device__ void init() {
    for (int half = 0; half < kHalves; ++half) {
      init_barrier(&full[half], 32);
      init_barrier(&empty[half], kWarpgroupWarps);
    }
  }

  // By one warp a half, for all tiles of the thread block. Rows outside the call keep what was there.
  __device__ void load_tiles(TileReader tiles, const TileGrid& grid, int half, const std::byte* queries) {
    constexpr int kPieces = kRowBytes / 16;
    const int lane = threadIdx.x % 32, piece = lane % kPieces;
    const std::uint32_t target = shared_address(rows[half]) + static_cast<std::uint32_t>(piece / 8 * kHalfRows * 128);
    Tile tile;
    while (tiles.next(tile)) {
      const std::byte* source = queries + grid.row_and_head(tile, half, 0) * kRowBytes + piece * 16;
      const int valid_rows = grid.valid_queries(tile, half) << grid.group_shift;
      wait_barrier(&empty[half], tiles.parity() ^ 1);
#pragma unroll 4
      for (int r = lane / kPieces; r < valid_rows; r += 32 / kPieces) {
        const std::int64_t offset = grid.row_and_head({}, 0, r) - grid.row_and_head({}, 0, 0);
        copy_async(target + static_cast<std::uint32_t>(r * 128 + (piece % 8 ^ r % 8) * 16),
                   source + offset * kRowBytes);
      }
      arrive_when_copied(&full[half]);
    }
  }

  // By a consumer warp, once full: A operands of the products over channels [16 k, 16 k + 16) for its 16 rows.
  __device__ void read(int half, std::uint32_t (&operands)[kHeadDim / 16][4]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % kWarpgroupWarps;
    const std::uint32_t row = shared_address(rows[half]) + static_cast<std::uint32_t>((warp * 16 + lane % 16) * 128);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const int piece = k % 4 * 2 + lane / 16;
      load_matrices(operands[k], row + k / 4 * kHalfRows * 128 + (piece ^ lane % 8) * 16);
    }
  }

 private:
  // This thread's arrival comes when all its copies have.
  __device__ static void arrive_when_copied(std::uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
};

}  // namespace ringmark::kernels::cuda::hopper
