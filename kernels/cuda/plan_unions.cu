// Unions of tiles. One warp a (tile, kv head) pair marks the tile's choices in a bitmap of chunks, a segment of the
// chunks at a time: counting its bits gives the size of the union and, for every choice, the place of its item.
#include <cuda_runtime.h>

#include <cub/device/device_scan.cuh>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTileRows = 128;  // (query, head) pairs of a tile
constexpr int kLaneWords = 16;
constexpr int kWords = 32 * kLaneWords;
constexpr int kSegmentChunks = 32 * kWords;
// Every kLaneWords words one more, so that lanes that walk their own words find all banks free.
constexpr int kPaddedWords = kWords + 32;
constexpr int kLoads = 8;         // choices that a lane asks for at a time
constexpr int kBatchItems = 128;  // items whose members stand in shared memory at a time

struct Tiles {
  LayerShape shape;
  const std::int32_t* selection;
  RowRange rows;
  std::int64_t pairs;  // (tile, kv head)
};

// The choices of a pair, walked by a warp. Rows of the selection are runs of topk, one every kv_heads of them.
struct Choices {
  const std::int32_t* first;  // of the tile's first query
  std::int32_t stride;        // from query to query
  std::int32_t topk;
  std::int32_t count;

  __device__ Choices(const Tiles& tiles, std::int64_t pair) {
    const std::int64_t tile_queries = kTileRows / tiles.shape.group, kv_heads = tiles.shape.kv_heads;
    const std::int64_t row = tiles.rows.begin + pair / kv_heads * tile_queries;
    topk = tiles.shape.topk;
    stride = static_cast<std::int32_t>(kv_heads * topk);
    first = tiles.selection + (row * kv_heads + pair % kv_heads) * topk;
    count = static_cast<std::int32_t>(min(tile_queries, tiles.rows.end - row)) * topk;
  }

  // Calls visit(query, chunk) for every used slot, by lanes.
  template <class Visit>
  __device__ void for_each(int lane, Visit visit) const {
    std::int32_t query = lane / topk, slot = lane % topk;
    const std::int32_t queries = 32 / topk, slots = 32 % topk;
    for (std::int32_t i = lane; i - lane < count; i += 32 * kLoads) {
      std::int32_t of_query[kLoads], chunk[kLoads];
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        of_query[n] = query;
        chunk[n] = i + 32 * n < count ? __ldg(first + query * stride + slot) : -1;
        query += queries;
        slot += slots;
        if (slot >= topk) {
          slot -= topk;
          ++query;
        }
      }
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        if (chunk[n] >= 0) visit(of_query[n], chunk[n]);
      }
    }
  }
};

__device__ inline int padded(int word) { return word + word / kLaneWords; }

// Marks the choices that fall into the segment from `first_chunk` on.
__device__ void mark_segment(const Choices& choices, std::int32_t first_chunk, std::uint32_t* bitmap, int lane) {
  auto* quads = reinterpret_cast<uint4*>(bitmap);
  for (int i = lane; i < kPaddedWords / 4; i += 32) quads[i] = uint4{0, 0, 0, 0};
  __syncwarp();
  choices.for_each(lane, [&](std::int32_t, std::int32_t chunk) {
    const std::int32_t at = chunk - first_chunk;
    if (at < 0 || at >= kSegmentChunks) return;
    // Neighbouring queries choose much the same: mostly the bit is there already, and looking is cheaper than setting.
    std::uint32_t& word = bitmap[padded(at / 32)];
    const std::uint32_t bit = 1u << at % 32;
    if ((*const_cast<volatile std::uint32_t*>(&word) & bit) == 0) atomicOr(&word, bit);
  });
  __syncwarp();
}

__global__ void __launch_bounds__(32 * kWarps)
    count_union_kernel(const __grid_constant__ Tiles tiles, std::int64_t* counts) {
  __shared__ __align__(16) std::uint32_t bitmaps[kWarps][kPaddedWords];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kWarps + warp;
  if (pair >= tiles.pairs) return;
  const Choices choices(tiles, pair);
  std::uint32_t total = 0;
  for (std::int32_t first = 0; first < tiles.shape.chunk_count; first += kSegmentChunks) {
    mark_segment(choices, first, bitmaps[warp], lane);
    for (int i = lane; i < kPaddedWords; i += 32) total += __popc(bitmaps[warp][i]);
    __syncwarp();
  }
  total = __reduce_add_sync(kAllLanes, total);
  if (lane == 0) counts[pair] = total;
}

// Items of a segment, by their bits in the bitmap.
struct Segment {
  std::uint32_t bitmap[kPaddedWords];
  std::uint16_t before[kPaddedWords];  // items of lower words
  std::uint32_t members[4][kBatchItems];
  std::int32_t chunks[kBatchItems];

  __device__ int place_of(std::int32_t bit) const {
    const int word = padded(bit / 32);
    return before[word] + __popc(bitmap[word] & ((1u << bit % 32) - 1u));
  }

  // Returns the number of items.
  __device__ int count_before(int lane) {
    const int first = padded(lane * kLaneWords);
    std::uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kLaneWords; ++i) own += __popc(bitmap[first + i]);
    std::uint32_t up_to = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    std::uint32_t lower = up_to - own;
#pragma unroll
    for (int i = 0; i < kLaneWords; ++i) {
      before[first + i] = static_cast<std::uint16_t>(lower);
      lower += __popc(bitmap[first + i]);
    }
    __syncwarp();
    return static_cast<int>(__shfl_sync(kAllLanes, up_to, 31));
  }

  __device__ void clear_members(int lane) {
    for (int i = lane; i < kBatchItems; i += 32) members[0][i] = members[1][i] = members[2][i] = members[3][i] = 0;
    __syncwarp();
  }
  __device__ UnionItem item(int place) const {
    return {chunks[place],
            0,
            {members[0][place] | std::uint64_t{members[1][place]} << 32,
             members[2][place] | std::uint64_t{members[3][place]} << 32}};
  }
};

__global__ void __launch_bounds__(32 * kWarps)
    fill_union_kernel(const __grid_constant__ Tiles tiles, const std::int64_t* offsets, UnionItem* items) {
  extern __shared__ __align__(16) std::byte dynamic[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kWarps + warp;
  if (pair >= tiles.pairs) return;
  Segment& segment = reinterpret_cast<Segment*>(dynamic)[warp];
  const Choices choices(tiles, pair);
  const std::int32_t half_queries = kTileRows / 2 / tiles.shape.group;
  UnionItem* next = items + offsets[pair];
  const UnionItem* end = items + offsets[pair + 1];
  for (std::int32_t first = 0; next < end; first += kSegmentChunks) {
    mark_segment(choices, first, segment.bitmap, lane);
    const int count = segment.count_before(lane);
    for (int batch = 0; batch < count; batch += kBatchItems) {
      segment.clear_members(lane);
      choices.for_each(lane, [&](std::int32_t query, std::int32_t chunk) {
        const std::int32_t bit = chunk - first;
        if (bit < 0 || bit >= kSegmentChunks) return;
        const int place = segment.place_of(bit) - batch;
        if (place < 0 || place >= kBatchItems) return;
        const int half = query >= half_queries ? 1 : 0, member = query - half * half_queries;
        atomicOr(&segment.members[2 * half + member / 32][place], 1u << member % 32);
        segment.chunks[place] = chunk;
      });
      __syncwarp();
      for (int i = lane; i < min(kBatchItems, count - batch); i += 32) next[batch + i] = segment.item(i);
      __syncwarp();
    }
    next += count;
  }
}

template <class T>
void reserve(ringmark::cuda::Buffer<T>& buffer, std::int64_t count) {
  if (buffer.size() >= count) return;
  buffer = {};  // freed first: both might not fit
  buffer = ringmark::cuda::Buffer<T>(count);
}

}  // namespace

UnionPlan UnionPlanner::plan(const LayerShape& shape, const std::int32_t* selection, RowRange rows,
                             cudaStream_t stream) {
  require(shape.group <= kTileRows / 2 && kTileRows / 2 % shape.group == 0, "a tile holds two halves of queries");
  const std::int64_t row_tiles = ceil_div(rows.size(), kTileRows / shape.group);
  const Tiles tiles{shape, selection, rows, row_tiles * shape.kv_heads};
  const bool chooses = tiles.pairs > 0 && shape.topk > 0;
  // The count behind the last pair is 0: its offset is the number of items.
  reserve(offsets_, tiles.pairs + 1);
  ringmark::cuda::check(
      cudaMemsetAsync(offsets_.data() + (chooses ? tiles.pairs : 0), 0,
                      static_cast<std::size_t>(chooses ? 1 : tiles.pairs + 1) * sizeof(std::int64_t), stream),
      "clear the sizes of unions");
  if (chooses) {
    count_union_kernel<<<grid_size(ceil_div(tiles.pairs, kWarps)), 32 * kWarps, 0, stream>>>(tiles, offsets_.data());
    ringmark::cuda::check_launch("count unions");
  }

  std::size_t bytes = 0;
  const auto add_up = [&](void* scratch) {
    ringmark::cuda::check(
        cub::DeviceScan::ExclusiveSum(scratch, bytes, offsets_.data(), offsets_.data(), tiles.pairs + 1, stream),
        "add up the sizes of unions");
  };
  add_up(nullptr);
  reserve(scratch_, static_cast<std::int64_t>(bytes));
  add_up(scratch_.data());
  offsets_.download(&items_used_, 1, stream, tiles.pairs);
  ringmark::cuda::check(cudaStreamSynchronize(stream), "count unions");

  // Some more than asked for, so that a little more next time does not allocate again.
  if (items_.size() < items_used_) reserve(items_, items_used_ + items_used_ / 8);
  if (items_used_ > 0) {
    constexpr int kBytes = kWarps * sizeof(Segment);
    ringmark::cuda::check(cudaFuncSetAttribute(fill_union_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                          "reserve shared memory for unions");
    fill_union_kernel<<<grid_size(ceil_div(tiles.pairs, kWarps)), 32 * kWarps, kBytes, stream>>>(tiles, offsets_.data(),
                                                                                                 items_.data());
    ringmark::cuda::check_launch("fill unions");
  }
  return {kTileRows / shape.group, row_tiles, items_.data(), offsets_.data()};
}

}  // namespace ringmark::kernels::cuda
