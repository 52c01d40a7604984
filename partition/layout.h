// Who owns which chunk. A shard is a list of whole chunks, ascending; the tokens of a shard are its chunks' tokens in
// that order. Any number of tokens and ranks is allowed: shards may be empty, the caller never pads or permutes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::partition {

enum class Balance {
  kContiguous,  // rank r owns one run of chunks
  kZigzag,      // every document is cut into 2 x ranks segments that are dealt 0..R-1, R-1..0: even causal work
  kRotate,      // chunk c belongs to rank c mod R: sequences that grow fill all ranks alike
};

std::string_view name_of(Balance balance);

class Layout {
 public:
  int ranks() const { return static_cast<int>(chunks_of_.size()); }
  RankId owner(ChunkId chunk) const { return RankId(owner_[static_cast<std::size_t>(chunk.value())]); }
  // Position of a chunk among the chunks of its owner.
  std::int64_t slot(ChunkId chunk) const { return slot_[static_cast<std::size_t>(chunk.value())]; }
  const std::vector<ChunkId>& chunks_of(RankId rank) const { return chunks_of_[index(rank)]; }
  std::int64_t token_count(RankId rank) const { return token_count_[index(rank)]; }
  // Of all ranks.
  std::int64_t token_count() const;
  // False for chunks that were left out of the shards.
  bool has_rows(ChunkId chunk) const { return !chunk_tokens_[static_cast<std::size_t>(chunk.value())].empty(); }
  // Row of a shard at which the chunk's first token stands.
  std::int64_t first_row(ChunkId chunk) const { return first_row_[static_cast<std::size_t>(chunk.value())]; }
  // The shard's tokens as maximal runs of consecutive ids, in row order: what to read from a file of the whole
  // sequence.
  std::vector<Range<TokenId>> token_runs(RankId rank) const;
  // The shard's tokens, row by row.
  std::vector<TokenId> tokens_of(RankId rank) const;

 private:
  friend Layout make_layout(const SequenceGrid& grid, int ranks, Balance balance);
  friend Layout leave_out(Layout layout, const std::vector<bool>& chunks);
  void count_rows();
  static std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

  std::vector<std::int32_t> owner_;
  std::vector<std::int64_t> slot_;
  std::vector<std::int64_t> first_row_;
  std::vector<Range<TokenId>> chunk_tokens_;
  std::vector<std::vector<ChunkId>> chunks_of_;
  std::vector<std::int64_t> token_count_;
};

Layout make_layout(const SequenceGrid& grid, int ranks, Balance balance);

// The same owners and slots, but the shards have no rows of these chunks (by chunk): they were computed before.
Layout leave_out(Layout layout, const std::vector<bool>& chunks);

// (query, chunk) pairs that each rank works on for its own queries, and how uneven they are.
struct WorkBalance {
  std::vector<std::int64_t> pairs;  // by rank: eligible chunks, which are scored, and chunks of the window
  double max_over_mean = 1.0;
};
WorkBalance measure_balance(const SequenceGrid& grid, const Layout& layout);

}  // namespace ringmark::partition
