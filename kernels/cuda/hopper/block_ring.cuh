// A ring of stages in shared memory, each one block (K and V of a chunk and kv head) and what the consumers must know
// of it. One warp fills stages with bulk copies; all consumer warps read them and hand them back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hopper/attend_tile.cuh"

namespace ringmark::kernels::cuda::hopper {

// A stage and the parity of its current use.
template <int kStages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Item: what is known of a block; has `last` (the tile ends with it), wanted_by(half) and want(half).
template <class Item_, int kHeadDim>
struct BlockRing {
  using Item = Item_;
  static constexpr int kValueOffset = kChunkKeys * kHeadDim * 2;
  static constexpr int kBlockBytes = 2 * kValueOffset;
  static constexpr int kStages = 6 * 32768 / kBlockBytes;  // what shared memory holds beside a tile of queries
  // A half takes items and passes over others. While it waits for the next one it holds kHeld stages, which must not be
  // the ones that this wait is for: so few items may it pass over in a row.
  static constexpr int kHeld = 2;
  static constexpr int kMostPassed = (kStages - 1) / kHeld - 1;

  alignas(1024) std::byte blocks[kStages][kBlockBytes];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  Item items[kStages];

  __device__ void init() {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kHalves * kWarpgroupThreads);
    }
  }
};

// The loading warp's walk over the ring.
template <class Ring>
class RingWriter {
 public:
  __device__ explicit RingWriter(Ring& ring) : ring_(ring) {}

  // Nothing is held when a tile starts.
  __device__ void start_tile() { passed_[0] = passed_[1] = 0; }

  // Fills `count` stages; lane n holds the n-th item and the address of its block. Without a block (null) only the item
  // passes. A half is given items that it does not want where it would pass over too many.
  __device__ void push(int count, typename Ring::Item& item, const std::byte* block) {
    const int lane = threadIdx.x % 32;
    unsigned wanted[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) wanted[half] = __ballot_sync(0xFFFFFFFFu, item.wanted_by(half));
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const bool takes = wanted[half] >> i & 1 || passed_[half] == Ring::kMostPassed;
        passed_[half] = takes ? 0 : passed_[half] + 1;
        if (takes && lane == i) item.want(half);
      }
      if (lane == i) fill(item, block);
      __syncwarp();
      place_.advance();
    }
  }

 private:
  // By one thread.
  __device__ void fill(const typename Ring::Item& item, const std::byte* block) {
    const int stage = place_.stage;
    wait_barrier(&ring_.empty[stage], place_.parity ^ 1);
    ring_.items[stage] = item;
    if (block == nullptr) return arrive(&ring_.full[stage]);
    arrive_and_expect(&ring_.full[stage], Ring::kBlockBytes);
    bulk_copy(ring_.blocks[stage], block, Ring::kBlockBytes, &ring_.full[stage]);
  }

  Ring& ring_;
  RingPlace<Ring::kStages> place_;
  int passed_[kHalves] = {0, 0};  // items of the tile since the last one taken
};

// A consumer warp's walk over the ring.
template <class Ring>
class RingReader {
 public:
  __device__ RingReader(Ring& ring, int half) : ring_(ring), half_(half) {}

  __device__ int half() const { return half_; }
  __device__ void start_tile() { last_ = false; }

  // The stage of the tile's next item that this half wants, or -1 after its last one. Unwanted stages go back at once.
  __device__ int next() {
    while (!last_) {
      const int stage = place_.stage;
      wait_barrier(&ring_.full[stage], place_.parity);
      const auto& item = ring_.items[stage];
      last_ = item.last;
      place_.advance();
      if (item.wanted_by(half_)) return stage;
      release(stage);
    }
    return -1;
  }

  // Valid until the stage is released.
  __device__ const typename Ring::Item& item(int stage) const { return ring_.items[stage]; }
  __device__ const std::byte* keys(int stage) const { return ring_.blocks[stage]; }
  __device__ const std::byte* values(int stage) const { return ring_.blocks[stage] + Ring::kValueOffset; }

  // This thread has read all it wants of the stage. Each says so itself: one that lags still has the item to read.
  __device__ void release(int stage) { arrive(&ring_.empty[stage]); }

 private:
  Ring& ring_;
  int half_;
  RingPlace<Ring::kStages> place_;
  bool last_ = false;
};

}  // namespace ringmark::kernels::cuda::hopper
