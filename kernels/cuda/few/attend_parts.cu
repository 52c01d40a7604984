// A thread block takes one part of what one row reads, for some query heads of one kv head: tiles of keys and values
// come into shared memory whole, so that all of their bytes are on the way at once; then scores, weights and the mix of
// values are made from there.
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/few/parts.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp.cuh"

namespace ringmark::kernels::cuda::few {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kHeads = 8;              // query heads of a thread block at most
constexpr int kWord = 16;              // bytes
constexpr int kTileBytes = 40 * 1024;  // of keys and values
constexpr float kInfinity = __builtin_huge_valf();

struct Job {
  LayerShape shape;
  Geometry geometry;
  const std::byte* const* blocks;
  const std::byte* queries;
  RowRange rows;
  PartSource source;
  PartRoom room;
  std::int32_t parts;
  std::int32_t head_groups;  // of a kv head: thread blocks that share its keys
  std::int32_t row_bytes;    // of a key in memory
  std::int32_t stride;       // of a key in shared memory: whole words, one more so that neighbours differ in banks
  std::int32_t tile_keys;

  __host__ __device__ std::int32_t heads_at_once() const { return min(shape.group, kHeads); }
  __host__ __device__ std::int32_t padded_dim() const {
    return (stride - kWord) / static_cast<std::int32_t>(size_of(shape.dtype));
  }
  std::int64_t shared_bytes() const {
    const std::int64_t floats = heads_at_once() * (2 * padded_dim() + tile_keys + 3);
    return 2 * std::int64_t{tile_keys} * stride + 4 * floats;
  }
};

// What a thread block has to do.
struct Task {
  std::int64_t row;
  std::int32_t part;
  std::int32_t kv_head;
  std::int32_t first_head;
  std::int32_t heads;

  __device__ explicit Task(const Job& job) {
    std::int64_t rest = blockIdx.x;
    const auto take = [&](std::int32_t count) {
      const auto digit = static_cast<std::int32_t>(rest % count);
      rest /= count;
      return digit;
    };
    part = take(job.parts);
    const std::int32_t group = take(job.head_groups);
    kv_head = take(job.shape.kv_heads);
    row = job.rows.begin + rest;
    first_head = kv_head * job.shape.group + group * kHeads;
    heads = min(kHeads, job.shape.group - group * kHeads);
  }
};

// Shared memory.
struct Scratch {
  std::byte* keys;    // [tile_keys][stride]
  std::byte* values;  // [tile_keys][stride]
  float* queries;     // [heads][padded_dim], scaled; zero past the head_dim
  float* mixed;       // [heads][padded_dim] values so far
  float* weights;     // [heads][tile_keys]
  float* top;         // [heads]
  float* sum;
  float* factor;  // what `mixed` has to be multiplied with

  __device__ Scratch(std::byte* shared, const Job& job) {
    const std::int32_t heads = job.heads_at_once();
    keys = shared;
    values = keys + job.tile_keys * job.stride;
    queries = reinterpret_cast<float*>(values + job.tile_keys * job.stride);
    mixed = queries + heads * job.padded_dim();
    weights = mixed + heads * job.padded_dim();
    top = weights + heads * job.tile_keys;
    sum = top + heads;
    factor = sum + heads;
  }
};

template <DType kDType>
__device__ void begin_row(const Job& job, const Task& task, const Scratch& scratch) {
  const std::int32_t width = job.padded_dim(), head_dim = job.shape.head_dim;
  const std::int64_t first = task.row * job.shape.heads + task.first_head;
  for (int i = threadIdx.x; i < task.heads * width; i += kThreads) {
    const int head = i / width, channel = i % width;
    const bool exists = channel < head_dim;
    scratch.queries[i] =
        exists ? job.shape.scale * element<kDType>(job.queries, (first + head) * head_dim + channel) : 0.0f;
  }
}

__device__ void clear(const Job& job, const Task& task, const Scratch& scratch) {
  for (int i = threadIdx.x; i < task.heads * job.padded_dim(); i += kThreads) scratch.mixed[i] = 0.0f;
  if (threadIdx.x < task.heads) {
    scratch.top[threadIdx.x] = -kInfinity;
    scratch.sum[threadIdx.x] = 0.0f;
  }
}

// Keys (or values) [0, count) from `from` on.
__device__ void load_rows(const Job& job, const std::byte* from, int count, std::byte* to) {
  if (job.row_bytes % kWord == 0) {
    const int words = job.row_bytes / kWord;
    for (int i = threadIdx.x; i < count * words; i += kThreads) {
      __pipeline_memcpy_async(to + i / words * job.stride + i % words * kWord, from + std::int64_t{i} * kWord, kWord);
    }
    return;
  }
  // A row of odd length: its last word is filled up with zeros.
  const int halves = job.row_bytes / 2, width = (job.stride - kWord) / 2;
  for (int i = threadIdx.x; i < count * width; i += kThreads) {
    const int row = i / width, half = i % width;
    const auto* source = reinterpret_cast<const std::uint16_t*>(from + std::int64_t{row} * job.row_bytes);
    reinterpret_cast<std::uint16_t*>(to + row * job.stride)[half] = half < halves ? source[half] : std::uint16_t{0};
  }
}

// The elements of a 16-byte word, times those of a query, added in order.
template <DType kDType>
__device__ float add_products(const uint4& word, const float* query, float sum) {
  const float4 low = *reinterpret_cast<const float4*>(query);
  if constexpr (kDType == DType::kFloat32) {
    sum = fmaf(__uint_as_float(word.x), low.x, sum);
    sum = fmaf(__uint_as_float(word.y), low.y, sum);
    sum = fmaf(__uint_as_float(word.z), low.z, sum);
    return fmaf(__uint_as_float(word.w), low.w, sum);
  } else {
    const float4 high = *reinterpret_cast<const float4*>(query + 4);
    const float2 a = widen_pair<kDType>(word.x), b = widen_pair<kDType>(word.y);
    const float2 c = widen_pair<kDType>(word.z), d = widen_pair<kDType>(word.w);
    sum = fmaf(a.y, low.y, fmaf(a.x, low.x, sum));
    sum = fmaf(b.y, low.w, fmaf(b.x, low.z, sum));
    sum = fmaf(c.y, high.y, fmaf(c.x, high.x, sum));
    return fmaf(d.y, high.w, fmaf(d.x, high.z, sum));
  }
}

// Logits of the tile's keys stand in `weights`.
template <DType kDType>
__device__ void score_keys(const Job& job, const Task& task, const Scratch& scratch, int count) {
  constexpr int kElements = kWord / static_cast<int>(size_of(kDType));
  const int words = (job.stride - kWord) / kWord;
  for (int i = threadIdx.x; i < count * task.heads; i += kThreads) {
    const int head = i / count, key = i % count;
    const auto* row = reinterpret_cast<const uint4*>(scratch.keys + key * job.stride);
    const float* query = scratch.queries + head * job.padded_dim();
    float even = 0.0f, odd = 0.0f;
    int word = 0;
    for (; word + 1 < words; word += 2) {
      even = add_products<kDType>(row[word], query + word * kElements, even);
      odd = add_products<kDType>(row[word + 1], query + (word + 1) * kElements, odd);
    }
    if (word < words) even = add_products<kDType>(row[word], query + word * kElements, even);
    scratch.weights[head * job.tile_keys + key] = even + odd;
  }
}

// One warp a head: logits become exp(logit - top).
__device__ void weigh_keys(const Job& job, const Task& task, const Scratch& scratch, int count) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int head = warp; head < task.heads; head += kWarps) {
    float* weights = scratch.weights + head * job.tile_keys;
    const float before = scratch.top[head];
    float top = before;
    for (int key = lane; key < count; key += 32) top = fmaxf(top, weights[key]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, distance));
    const float base = top == -kInfinity ? 0.0f : top;  // -inf - -inf would be NaN
    float sum = 0.0f;
    for (int key = lane; key < count; key += 32) {
      weights[key] = expf(weights[key] - base);
      sum += weights[key];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane == 0) {
      const float factor = expf(before - base);
      scratch.top[head] = top;
      scratch.sum[head] = scratch.sum[head] * factor + sum;
      scratch.factor[head] = factor;
    }
  }
}

// A thread has four bytes of channels, of one head at a time.
template <DType kDType>
__device__ void mix_values(const Job& job, const Task& task, const Scratch& scratch, int count) {
  constexpr int kChannels = 4 / static_cast<int>(size_of(kDType));
  const int words = job.padded_dim() / kChannels;
  for (int i = threadIdx.x; i < task.heads * words; i += kThreads) {
    const int head = i / words, word = i % words;
    const float* weights = scratch.weights + head * job.tile_keys;
    const std::byte* value = scratch.values + word * 4;
    float* mixed = scratch.mixed + head * job.padded_dim() + word * kChannels;
    const float factor = scratch.factor[head];
    float2 sum{mixed[0] * factor, 0.0f};
    if constexpr (kChannels == 2) sum.y = mixed[1] * factor;
#pragma unroll 8
    for (int key = 0; key < count; ++key) {
      const auto bits = *reinterpret_cast<const std::uint32_t*>(value + key * job.stride);
      if constexpr (kChannels == 2) {
        const float2 pair = widen_pair<kDType>(bits);
        sum.x = fmaf(weights[key], pair.x, sum.x);
        sum.y = fmaf(weights[key], pair.y, sum.y);
      } else {
        sum.x = fmaf(weights[key], __uint_as_float(bits), sum.x);
      }
    }
    mixed[0] = sum.x;
    if constexpr (kChannels == 2) mixed[1] = sum.y;
  }
}

// Goes on with the softmax over slots [begin, end) of a chunk. Begins and ends with all threads together.
template <DType kDType>
__device__ void attend_slots(const Job& job, const Task& task, const Scratch& scratch, std::int32_t chunk, int begin,
                             int end) {
  const std::byte* keys = job.blocks[std::int64_t{chunk} * job.shape.kv_heads + task.kv_head];
  const std::byte* values = keys + std::int64_t{job.shape.chunk_size} * job.row_bytes;
  for (int first = begin; first < end; first += job.tile_keys) {
    const int count = min(job.tile_keys, end - first);
    load_rows(job, keys + std::int64_t{first} * job.row_bytes, count, scratch.keys);
    __pipeline_commit();
    load_rows(job, values + std::int64_t{first} * job.row_bytes, count, scratch.values);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    score_keys<kDType>(job, task, scratch, count);
    __syncthreads();
    weigh_keys(job, task, scratch, count);
    __pipeline_wait_prior(0);
    __syncthreads();
    mix_values<kDType>(job, task, scratch, count);
    __syncthreads();
  }
}

__device__ std::int64_t place_of(const Job& job, const Task& task, int head) {
  return ((task.row - job.rows.begin) * job.shape.heads + task.first_head + head) * kMostParts + task.part;
}

// mass: what a thread knows of the head of its number.
__device__ void write_mass(const Job& job, const Task& task, float2 mass) {
  if (threadIdx.x < task.heads) job.room.mass[place_of(job, task, static_cast<int>(threadIdx.x))] = mass;
}

template <DType kDType>
__device__ void attend_window_part(const Job& job, const Task& task, const Scratch& scratch) {
  const RowGeometry row = job.geometry.rows[task.row];
  const std::int32_t sinks = row.sink_last - row.sink_first;
  const PartRange range = PartRange::of(sinks + row.chunk - row.window_first + 1, task.part);
  for (std::int32_t n = range.begin; n < range.end; ++n) {
    const std::int32_t chunk = n < sinks ? row.sink_first + n : row.window_first + n - sinks;
    const ChunkGeometry geometry = job.geometry.chunks[chunk];
    const int visible = n < sinks ? geometry.sink_end : chunk < row.chunk ? geometry.slots_end : row.visible;
    attend_slots<kDType>(job, task, scratch, chunk, 0, min(visible, static_cast<int>(geometry.slots_end)));
  }
  for (int i = threadIdx.x; i < task.heads * job.padded_dim(); i += kThreads) {
    const int head = i / job.padded_dim(), channel = i % job.padded_dim();
    if (channel >= job.shape.head_dim) continue;
    job.room.out[place_of(job, task, head) * job.shape.head_dim + channel] = scratch.mixed[i];
  }
  if (threadIdx.x < task.heads) write_mass(job, task, {scratch.top[threadIdx.x], scratch.sum[threadIdx.x]});
}

// The results of the chunks, each of its own softmax, weighed and added in memory that only this thread touches.
template <DType kDType>
__device__ void attend_chosen_part(const Job& job, const Task& task, const Scratch& scratch) {
  const LayerShape& shape = job.shape;
  const std::int32_t* chunks = job.source.selection + (task.row * shape.kv_heads + task.kv_head) * shape.topk;
  const PartRange range = PartRange::of(shape.topk, task.part);
  bool first = true;
  for (std::int32_t slot = range.begin; slot < range.end && chunks[slot] >= 0; ++slot) {
    if (!first) clear(job, task, scratch);
    __syncthreads();
    const ChunkGeometry geometry = job.geometry.chunks[chunks[slot]];
    attend_slots<kDType>(job, task, scratch, chunks[slot], geometry.key_begin, geometry.key_end);
    for (int i = threadIdx.x; i < task.heads * job.padded_dim(); i += kThreads) {
      const int head = i / job.padded_dim(), channel = i % job.padded_dim();
      if (channel >= shape.head_dim) continue;
      const float sum = scratch.sum[head];
      const float score =
          job.source.chosen_scores[(task.row * shape.heads + task.first_head + head) * shape.topk + slot];
      const float weight = sum > 0.0f ? expf(score) / sum : 0.0f;
      float& out = job.room.out[place_of(job, task, head) * shape.head_dim + channel];
      out = first ? weight * scratch.mixed[i] : fmaf(weight, scratch.mixed[i], out);
    }
    __syncthreads();
    first = false;
  }
  write_mass(job, task, {0.0f, first ? 0.0f : 1.0f});
}

template <DType kDType>
__global__ void __launch_bounds__(kThreads) attend_parts_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(16) std::byte shared[];
  const Task task(job);
  const Scratch scratch(shared, job);
  begin_row<kDType>(job, task, scratch);
  clear(job, task, scratch);
  __syncthreads();
  if (job.source.selection == nullptr) {
    attend_window_part<kDType>(job, task, scratch);
  } else {
    attend_chosen_part<kDType>(job, task, scratch);
  }
}

template <DType kDType>
void launch(const Job& job, std::int64_t blocks, cudaStream_t stream) {
  const std::int64_t bytes = job.shared_bytes();
  ringmark::cuda::check(cudaFuncSetAttribute(attend_parts_kernel<kDType>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(bytes)),
                        "reserve shared memory for attention");
  attend_parts_kernel<kDType><<<grid_size(blocks), kThreads, static_cast<std::size_t>(bytes), stream>>>(job);
  ringmark::cuda::check_launch("attend_parts");
}

}  // namespace

void attend_parts(const LayerShape& shape, const Geometry& geometry, const DeviceBlocks& blocks,
                  const std::byte* queries, RowRange rows, const PartSource& source, std::int32_t parts,
                  const PartRoom& room, cudaStream_t stream) {
  require(blocks.order == BlockOrder::kPlain, "few rows attend to blocks in plain order");
  const auto row_bytes = static_cast<std::int32_t>(shape.head_dim * size_of(shape.dtype));
  Job job{shape, geometry, blocks.table, queries, rows, source, room, parts, 0, row_bytes, 0, 0};
  job.head_groups = (shape.group + kHeads - 1) / kHeads;
  job.stride = (row_bytes + kWord - 1) / kWord * kWord + kWord;
  job.tile_keys = std::clamp(kTileBytes / (2 * job.stride), 1, shape.chunk_size);
  const std::int64_t blocks_of_all = rows.size() * shape.kv_heads * job.head_groups * parts;
  switch (shape.dtype) {
    case DType::kFloat32: return launch<DType::kFloat32>(job, blocks_of_all, stream);
    case DType::kBfloat16: return launch<DType::kBfloat16>(job, blocks_of_all, stream);
    case DType::kFloat16: return launch<DType::kFloat16>(job, blocks_of_all, stream);
  }
}

}  // namespace ringmark::kernels::cuda::few
