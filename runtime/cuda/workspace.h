// Device memory of a prefill. Buffers grow when a layer needs more and stay for the next one, so that a second layer of
// the same shape allocates nothing. All that the sparse prefill takes is in the memory plan
// (runtime/cuda/memory_plan.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda/buffer.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/row_geometry.h"
#include "kernels/cuda/score.h"

namespace ringmark::runtime::cuda {

// Rows scored at a time, rows whose unions are planned at a time, and pairs scored exactly at a time (their lists take
// at most 256 MiB, unless a few are larger): they bound the lists that exist at once.
inline constexpr std::int64_t kScoredRows = 65536;
inline constexpr std::int64_t kUnionRows = 131072;
constexpr std::int64_t exact_pairs_at_once(std::int64_t group, std::int64_t topk) {
  const std::int64_t list_bytes = group * topk * static_cast<std::int64_t>(sizeof(kernels::Candidate));
  return std::clamp<std::int64_t>((std::int64_t{1} << 28) / std::max<std::int64_t>(1, list_bytes), 256, 32768);
}

struct Workspace {
  template <class T>
  using Buffer = ringmark::cuda::Buffer<T>;

  ringmark::cuda::Stream stream;

  // Results, of all rows.
  Buffer<float> out;               // [rows, H, d]
  Buffer<float> lse;               // [rows, H]
  Buffer<std::int32_t> selection;  // [rows, Hkv, K]

  // Geometry and addresses.
  Buffer<kernels::cuda::RowGeometry> rows;
  Buffer<kernels::cuda::RowRun> row_runs;
  Buffer<kernels::cuda::ChunkGeometry> chunks;
  Buffer<std::int64_t> tokens;
  Buffer<const std::byte*> block_table;  // [chunks, Hkv]
  Buffer<const float*> record_table;     // [chunks]
  Buffer<std::byte> own_chunks;          // per owned chunk: what packing and landmark building need
  Buffer<std::byte> fetched_blocks;
  Buffer<std::int32_t> beyond_fp16;

  // Landmarks.
  Buffer<float> remote_records;
  Buffer<std::byte> tile_terms;
  Buffer<float> tile_bias;
  Buffer<float> tile_numbers;  // exponent scales, key norms, residual norms: [3, landmark heads]

  // Scoring.
  Buffer<kernels::Candidate> candidates;
  Buffer<float> cuts;
  Buffer<float2> sums;
  Buffer<float> chosen_scores;   // [rows, H, K]
  Buffer<float> window_weights;  // [rows, H]
  Buffer<kernels::cuda::ScoringItem> open_items;
  Buffer<unsigned long long> counter;
  Buffer<kernels::Candidate> exact_candidates;
  Buffer<kernels::LogSum> exact_sums;

  // Attention.
  Buffer<std::uint32_t> needed_blocks;
  kernels::cuda::UnionPlanner unions;

  // Of the keys that are here, in an exact ring.
  Buffer<float> partial_out;  // [rows, H, d]
  Buffer<float> partial_lse;  // [rows, H]

  // Makes a buffer hold at least `count`; what it held is lost when it grows.
  template <class T>
  static T* reserve(Buffer<T>& buffer, std::int64_t count) {
    if (buffer.size() < count) {
      buffer = Buffer<T>();  // first free, then take
      buffer = Buffer<T>(count);
    }
    return buffer.data();
  }
};

}  // namespace ringmark::runtime::cuda
