// "Stingy" positions: those of Landmark Attention's inference cache, by which a query never meets a key further away
// than K + 2 chunks, however long its document. Source: epfml/landmark-attention, llama_mem.py; docs/numerics.md,
// "Positions in a cache".
//
// For a query at slot o of its document, chunks of S slots, n = floor(o / S) complete chunks before its own and n > K:
//     prefix = (n - K - 1) S                                           where the cache begins
//     far    chunks c < n - K: the landmarks of all of them count at the one position prefix + S - 1
//     near   the last K chunks: their landmarks count at their own positions c S + S - 1
//     the chunk in slot r of a chooser's list, ascending, begins at  prefix + r S  (far)  or  prefix + (r + 1) S (near)
// With n <= K all chunks are near and stay where they are. The current chunk and the query always do.
//
// Queries and keys come rotated at their slots, and rotations add up: a chunk that moves by some chunks is met by a
// query that turns by as many, and a far landmark is met by its key turned back to position 0. Turned is in fp32 what
// was widened, with angles as exact as those of rotate().
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/positions/encoding.h"
#include "kernels/positions/rotation.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

class CachePositions {
 public:
  // encoding  what rotated queries and keys, each at its slot in its document; rotates
  // grid      outlives this
  CachePositions(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::SequenceGrid& grid,
                 const PositionEncoding& encoding);

  // The eligible chunks in two parts.
  Range<ChunkId> far(TokenId query) const { return {grid_.eligible(query).begin, first_near(query)}; }
  Range<ChunkId> near(TokenId query) const { return {first_near(query), grid_.eligible(query).end}; }
  bool is_far(TokenId query, ChunkId chunk) const { return chunk < first_near(query); }

  // How many chunks nearer than in its document a chosen chunk stands; `slot` is its place among the choices.
  std::int64_t chunks_nearer(TokenId query, ChunkId chunk, std::int64_t slot) const;

  // Heads [heads, head_dim] of the query as they meet such a chunk, and as they meet far landmarks.
  void meet_chunk(TokenId query, ChunkId chunk, std::int64_t slot, std::span<float> heads) const;
  void meet_far_landmarks(TokenId query, std::span<float> heads) const;
  // Keys [heads, head_dim] of the chunk's landmark slot as they are at position 0, where far landmarks are met.
  void turn_back_landmark(ChunkId chunk, std::span<float> keys) const;

 private:
  ChunkId first_near(TokenId query) const;
  void turn(const Rotation& rotation, std::int64_t by, std::span<float> heads) const;

  const partition::SequenceGrid& grid_;
  std::int64_t chunk_size_;
  std::int64_t topk_;
  std::int64_t head_dim_;
  Rotation of_queries_;
  Rotation of_keys_;
};

}  // namespace ringmark::kernels
