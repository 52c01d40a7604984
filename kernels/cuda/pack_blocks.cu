// Rows of K and V become blocks. A copy that is bound by memory: the largest words that divide a row (16 bytes in every
// usual shape), several in flight a thread, no division in the loop. A thread block takes some slots of a chunk with
// all their kv heads: these are one piece of memory on the side that is read, and long pieces on the side that is
// written.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/launch.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // words of K, and as many of V, a thread

struct Packing {
  const std::byte* keys;
  const std::byte* values;
  const std::int64_t* first_rows;
  const std::int32_t* slots;
  std::byte* arena;
  std::int32_t* beyond_fp16;
  std::int64_t chunks;
  std::int32_t kv_heads;
  std::int32_t chunk_size;
  std::int32_t row_words;   // words of a row of one kv head
  std::int32_t part_slots;  // slots of a part, the work of a thread block
  std::int32_t parts;       // of a chunk
};

struct Place {
  int slot;
  int kv_head;
  int word;

  // All three differences at once; each stays below the length of its range.
  __device__ void advance(const Place& by, const Packing& p) {
    word += by.word;
    kv_head += by.kv_head;
    slot += by.slot;
    if (word >= p.row_words) {
      word -= p.row_words;
      ++kv_head;
    }
    if (kv_head >= p.kv_heads) {
      kv_head -= p.kv_heads;
      ++slot;
    }
  }
};

__device__ Place place_of(int word, const Packing& p) {
  const int row = word / p.row_words;
  return {row / p.kv_heads, row % p.kv_heads, word % p.row_words};
}

// Word index inside K of a block.
template <BlockOrder kOrder>
__device__ int target_of(const Packing& p, int slot, int word) {
  if constexpr (kOrder == BlockOrder::kPlain) return slot * p.row_words + word;
  // Eight 16-byte words make a row of 64 channels.
  return (word / 8 * p.chunk_size + slot) * 8 + ((word % 8) ^ (slot % 8));
}

// Eight bf16 values as fp16; whether all of them are below its infinity.
__device__ inline bool to_fp16(uint4& words) {
  std::uint32_t* pairs = reinterpret_cast<std::uint32_t*>(&words);
  bool fits = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pairs[i]));
    fits = fits && !(fabsf(pair.x) > 65504.0f) && !(fabsf(pair.y) > 65504.0f);  // NaN stays NaN
    const __half2 half = __floats2half2_rn(pair.x, pair.y);
    pairs[i] = reinterpret_cast<const std::uint32_t&>(half);
  }
  return fits;
}

template <class Word, BlockOrder kOrder, bool kValuesToFp16>
__device__ void pack_part(const Packing& p, std::int64_t chunk, int first_slot) {
  const int slots = p.slots[chunk];
  const int token_words = p.kv_heads * p.row_words;
  const int block_words = p.chunk_size * p.row_words;
  const int end_slot = min(first_slot + p.part_slots, p.chunk_size);
  const std::int64_t first_word = p.first_rows[chunk] * token_words;
  const auto* keys = reinterpret_cast<const Word*>(p.keys) + first_word;
  const auto* values = reinterpret_cast<const Word*>(p.values) + first_word;
  auto* blocks = reinterpret_cast<Word*>(p.arena) + chunk * p.kv_heads * 2 * block_words;
  const Place step = place_of(kThreads, p);
  Place place = place_of(threadIdx.x, p);
  place.slot += first_slot;
  while (place.slot < end_slot) {
    Word key_words[kInFlight], value_words[kInFlight];
    Place ahead = place;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      key_words[i] = value_words[i] = Word{};
      if (ahead.slot < min(slots, end_slot)) {
        const int word = ahead.slot * token_words + ahead.kv_head * p.row_words + ahead.word;
        key_words[i] = __ldcs(keys + word);
        value_words[i] = __ldcs(values + word);
      }
      ahead.advance(step, p);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (place.slot < end_slot) {
        Word* target =
            blocks + std::int64_t{place.kv_head} * 2 * block_words + target_of<kOrder>(p, place.slot, place.word);
        if constexpr (kValuesToFp16) {
          if (!to_fp16(value_words[i])) *p.beyond_fp16 = 1;
        }
        target[0] = key_words[i];
        target[block_words] = value_words[i];
      }
      place.advance(step, p);
    }
  }
}

template <class Word, BlockOrder kOrder, bool kValuesToFp16>
__global__ void __launch_bounds__(kThreads) pack_blocks_kernel(Packing p) {
  for (std::int64_t part = blockIdx.x; part < p.chunks * p.parts; part += gridDim.x) {
    const std::int64_t chunk = part / p.parts;
    pack_part<Word, kOrder, kValuesToFp16>(p, chunk, static_cast<int>(part - chunk * p.parts) * p.part_slots);
  }
}

template <class Word, BlockOrder kOrder = BlockOrder::kPlain, bool kValuesToFp16 = false>
void launch(Packing p, std::int64_t row_bytes, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  p.row_words = static_cast<std::int32_t>(row_bytes / static_cast<std::int64_t>(sizeof(Word)));
  p.part_slots = std::clamp(kThreads * kInFlight / (p.kv_heads * p.row_words), 1, p.chunk_size);
  p.parts = static_cast<std::int32_t>(ceil_div(p.chunk_size, p.part_slots));
  const unsigned int grid = grid_size(std::min(p.chunks * p.parts, kMostBlocks));
  pack_blocks_kernel<Word, kOrder, kValuesToFp16><<<grid, kThreads, 0, stream>>>(p);
  ringmark::cuda::check_launch("pack_blocks");
}

}  // namespace

void pack_blocks(const LayerShape& shape, const std::byte* keys, const std::byte* values,
                 const std::int64_t* first_rows, const std::int32_t* slots, std::int64_t count, BlockOrder order,
                 std::byte* arena, std::int32_t* beyond_fp16, cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t row_bytes = shape.head_dim * size_of(shape.dtype);
  const Packing p{keys,  values,         first_rows,       slots, arena, beyond_fp16,
                  count, shape.kv_heads, shape.chunk_size, 0,     0,     0};
  if (order == BlockOrder::kSwizzled) {
    require(row_bytes % 128 == 0 && size_of(shape.dtype) == 2 && shape.chunk_size % 8 == 0,
            "swizzled blocks have rows of whole 128-byte lines");
    shape.dtype == DType::kBfloat16 ? launch<uint4, BlockOrder::kSwizzled, true>(p, row_bytes, stream)
                                    : launch<uint4, BlockOrder::kSwizzled>(p, row_bytes, stream);
  } else if (row_bytes % 16 == 0) {
    launch<uint4>(p, row_bytes, stream);
  } else if (row_bytes % 4 == 0) {
    launch<unsigned int>(p, row_bytes, stream);
  } else {
    launch<unsigned short>(p, row_bytes, stream);
  }
}

}  // namespace ringmark::kernels::cuda
