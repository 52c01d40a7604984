// Which tile a thread block works on next. Multiprocessors do not run equally fast, so whoever is free takes the next
// tile from a counter in device memory: a fixed share each costs 10 percent.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/cuda/buffer.h"
#include "kernels/cuda/hopper/attend_tile.cuh"

namespace ringmark::kernels::cuda::hopper {

// The counter of a stream, set to zero in its order. Launches of one stream follow each other, so they may share it.
inline std::uint32_t* fresh_tile_counter(cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned long long>, ringmark::cuda::Buffer<std::uint32_t>> counters;
  int device = 0;
  unsigned long long id = 0;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the device");
  ringmark::cuda::check(cudaStreamGetId(stream, &id), "ask for the stream");
  const std::lock_guard lock(mutex);
  auto& counter = counters[{device, id}];
  if (counter.empty()) counter = ringmark::cuda::Buffer<std::uint32_t>(1);
  counter.fill_bytes(0, stream);
  return counter.data();
}

// In shared memory: the tiles that come next, for every warp but the one that serves them.
struct TileQueue {
  static constexpr int kSlots = 2;
  static constexpr int kReaders = 3 + kHalves * kWarpgroupWarps;

  std::uint32_t places[kSlots];
  std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];

  __device__ void init() {
    for (int slot = 0; slot < kSlots; ++slot) {
      init_barrier(&full[slot], 1);
      init_barrier(&empty[slot], kReaders);
    }
  }

  // By one thread.
  __device__ void serve(const TileGrid& grid, std::uint32_t* counter) {
    std::uint32_t place = blockIdx.x;
    for (std::uint32_t n = 0;; ++n) {
      wait_barrier(&empty[n % kSlots], n / kSlots % 2 ^ 1);
      if (n > 0) place = gridDim.x + atomicAdd(counter, 1);
      places[n % kSlots] = place;
      arrive(&full[n % kSlots]);
      if (place >= grid.tiles()) return;
    }
  }
};

// A warp's walk over the tiles of its thread block.
class TileReader {
 public:
  __device__ TileReader(TileQueue& queue, const TileGrid& grid) : queue_(queue), grid_(grid) {}

  // False after the last tile.
  __device__ bool next(Tile& tile) {
    const std::uint32_t slot = round_ % TileQueue::kSlots;
    wait_barrier(&queue_.full[slot], round_ / TileQueue::kSlots % 2);
    const std::uint32_t place = queue_.places[slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&queue_.empty[slot]);
    ++round_;
    if (place >= grid_.tiles()) return false;
    tile = grid_.tile_at(place);
    return true;
  }
  // Of anything that is used once a tile: that of the current tile.
  __device__ std::uint32_t parity() const { return (round_ - 1) % 2; }

 private:
  TileQueue& queue_;
  const TileGrid& grid_;
  std::uint32_t round_ = 0;
};

}  // namespace ringmark::kernels::cuda::hopper
