// Where the tokens of growing sequences stand, and how many of them are there: what every keeper of a layer, in host
// memory or on a GPU, knows alike on all ranks.
//
// Positions are those of the *capacity grid*: the sequences packed at their final lengths. A token that is not there
// yet is simply not there; causality and eligibility never look at it. So a token has the same id, and its chunk too,
// as in one prefill of the whole. Chunks rotate over the ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kvstore/prefix_chains.h"
#include "kvstore/snapshot_manifest.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {

// A chunk that holds tokens.
struct ChunkPlace {
  ChunkId kept;   // in the grid of what is kept
  ChunkId chunk;  // in the capacity grid
  bool closed = false;
};

// First chunk of every sequence in the grid of the problem, then the number of chunks.
std::vector<ChunkId> first_chunks(const AttentionProblem& problem);

class KeptSequences {
 public:
  // problem: at the capacities. Nothing is there yet.
  KeptSequences(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks);

  const partition::SequenceGrid& grid() const { return grid_; }
  const partition::Layout& layout() const { return layout_; }
  std::int64_t count() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t sequence) const { return lengths_[static_cast<std::size_t>(sequence)]; }
  std::int64_t capacity(std::int64_t sequence) const { return places_[static_cast<std::size_t>(sequence)].capacity; }

  // The tokens that rows of these sequences become. Throws Error(kBadInput) naming the row of a sequence that is not
  // there or full.
  std::vector<TokenId> place(std::span<const std::int64_t> sequences) const;
  // token_id: of the next token of the sequence, where it is known.
  void add_token(std::int64_t sequence, std::optional<std::int64_t> token_id);
  // Whether the token is the last one of a chunk that it closes.
  bool closes_chunk(TokenId token) const;
  // All that a snapshot of as many sequences keeps, into sequences without tokens.
  void begin_with(const kvstore::SnapshotManifest& kept);

  // Ascending.
  std::vector<ChunkPlace> chunks() const;
  // `problem` at the lengths of now.
  AttentionProblem kept_problem(const AttentionProblem& problem) const;
  kvstore::KnownPrefixes prefixes() const { return chains_.known(); }

 private:
  struct Place {
    TokenId first_token;
    ChunkId first_chunk;
    std::int64_t capacity;
  };
  // Chunks, closed or growing, that hold so many tokens.
  std::int64_t chunks_of_length(std::int64_t length) const;

  partition::SequenceGrid grid_;
  partition::Layout layout_;
  std::vector<Place> places_;
  std::vector<std::int64_t> lengths_;
  kvstore::PrefixChains chains_;
};

}  // namespace ringmark::runtime
