// Geometry of the sequence: which tokens form a chunk, which keys a query attends exactly, which chunks it may choose.
// Pure arithmetic; every other floor asks here instead of computing positions itself.
//
// The chunk grid restarts at every packed document, so that a document gives the same result packed or alone.
// For one query the sinks, the window and the keys of its eligible chunks are disjoint. Where the policy selects, the
// window begins at a chunk and together they cover every key up to the query, except the keys of chunks that are
// neither (none when sinks = 0); elsewhere there is nothing to choose, and keys below the window that are no sinks are
// not attended.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"

namespace ringmark::partition {

struct Document {
  Range<TokenId> tokens;
  Range<ChunkId> chunks;
};

class SequenceGrid {
 public:
  // Both arguments must have been validated.
  SequenceGrid(const AttentionProblem& problem, const AttentionPolicy& policy);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t chunk_size() const { return chunk_size_; }
  std::int64_t chunk_count() const { return chunk_count_; }
  // Documents with at least one token, in order.
  const std::vector<Document>& documents() const { return documents_; }
  const Document& document_of(TokenId token) const;
  const Document& document_of(ChunkId chunk) const;

  ChunkId chunk_of(TokenId token) const;
  // All slots of a chunk; shorter than chunk_size only for the last chunk of a document.
  Range<TokenId> tokens_of(ChunkId chunk) const;
  // The chunk's ordinary tokens: without its landmark slot and without sinks. These form its landmark and are what a
  // query attends to when it chooses the chunk.
  Range<TokenId> keys_of(ChunkId chunk) const;
  // True when the chunk is full and has at least one ordinary token.
  bool has_landmark(ChunkId chunk) const;
  // The slot whose retrieval query is the chunk's landmark query: its last one. Only for chunks with a landmark.
  TokenId landmark_slot(ChunkId chunk) const { return tokens_of(chunk).end - 1; }
  // False for landmark slots.
  bool is_key(TokenId token) const;

  // Slots [l(i), i] of the query's document, l(i) as WindowEdge says; it does not fall from one query to the next.
  // Landmark slots among them are not keys: ask is_key.
  Range<TokenId> window_of(TokenId query) const;
  // Sink slots below the window; those inside it belong to window_of.
  Range<TokenId> sinks_of(TokenId query) const;
  // Chunks the query may choose. Contiguous, and each has a landmark.
  Range<ChunkId> eligible(TokenId query) const;

 private:
  // The first slot of a query's window; both relative to the document.
  std::int64_t window_start(std::int64_t query) const;

  std::int64_t tokens_;
  std::int64_t chunk_size_;
  std::int64_t chunk_count_;
  std::int64_t window_;
  WindowEdge edge_;
  std::int64_t segment_;
  std::int64_t sinks_;
  bool landmark_slots_;
  bool selects_;
  std::vector<Document> documents_;
};

}  // namespace ringmark::partition
