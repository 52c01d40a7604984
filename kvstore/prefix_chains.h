// What is known of the token ids of sequences that grow: the hashes of their full chunks (kvstore/prefix_hash.h) and
// the ids of the chunk behind them, with which the chain goes on when it closes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"

namespace ringmark::kvstore {

// As a snapshot keeps it.
struct KnownPrefixes {
  // By chunk: 64 hex digits, "" for one that grows and from the first one on, in its sequence, that has a token without
  // an id. Empty: no ids are known.
  std::vector<std::string> hashes;
  // By sequence: the ids of its growing chunk, all or none. Empty: none of any sequence.
  std::vector<std::vector<std::int64_t>> tails;
};

class PrefixChains {
 public:
  // Sequences without tokens.
  PrefixChains(std::int64_t chunk_size, std::int64_t sequences);

  // The next token of a sequence; without an id, or where prefixes cannot be hashed, no chunk from this one on has a
  // hash.
  void append(std::int64_t sequence, std::optional<std::int64_t> token_id);
  // The first tokens of a sequence that has none yet: hashes by full chunk and the ids behind them, as in
  // KnownPrefixes.
  void begin(std::int64_t sequence, std::int64_t tokens, std::span<const std::string> hashes,
             std::span<const std::int64_t> tail);

  // Of the full chunks of a sequence.
  const std::vector<std::string>& hashes(std::int64_t sequence) const { return chain(sequence).hashes; }
  KnownPrefixes known() const;

 private:
  struct Chain {
    std::vector<std::string> hashes;
    std::int64_t tail_tokens = 0;
    std::vector<std::int64_t> tail;
    bool known = true;  // every token has its id
  };

  const Chain& chain(std::int64_t sequence) const { return chains_[static_cast<std::size_t>(sequence)]; }

  std::int64_t chunk_size_;
  std::vector<Chain> chains_;
};

// Of whole sequences. token_ids: of all tokens of the problem.
PrefixChains prefix_chains(const AttentionProblem& problem, std::span<const std::int64_t> token_ids);

}  // namespace ringmark::kvstore
