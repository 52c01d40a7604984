// The inference cache of Landmark Attention with "stingy" positions, in fp64 and to the letter: keys that are not
// rotated, the positions that the cache gives to them, rotation of query and keys at these positions, and the grouped
// softmax. It never asks how far rotations add up, which is what the fast kernels live on.
// Source: epfml/landmark-attention (llama_mem.py, lm_benchmark/models/caches/mem_cache.py); docs/numerics.md,
// "Positions in a cache".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kernels/positions/encoding.h"
#include "kernels/positions/rotate.h"
#include "kernels/reference/attention.h"

namespace ringmark::kernels::reference {

// Of a cache that gives out at most K = topk of the n complete chunks of S = chunk_size slots before the query's own.
struct ChunkCache {
  std::int64_t chunks = 0;  // n
  std::int64_t topk = 0;
  std::int64_t chunk_size = 0;

  // Where the landmark of chunk c, counted in the document, is scored.
  std::int64_t landmark_position(std::int64_t c) const;
  // Where each of the chosen chunks (ascending, counted in the document, K of them or all n) begins.
  std::vector<std::int64_t> starts_of(std::span<const std::int64_t> chosen) const;
};

// Rows [rows, heads, head_dim] at these positions [rows].
std::vector<double> rotated(const PositionEncoding& encoding, Side side, std::vector<double> rows, std::int64_t heads,
                            std::int64_t head_dim, std::span<const std::int64_t> positions);

// q and k of the layer are not rotated; its policy has the scorer landmark, W = 0 and no sinks. lse_window is that of
// the keys of the current chunk.
Result attend_stingy(const Layer& layer, const PositionEncoding& encoding, std::span<const TokenId> queries,
                     int threads);

}  // namespace ringmark::kernels::reference
