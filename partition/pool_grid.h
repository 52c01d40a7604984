// Geometry of pooled keys: which groups of consecutive slots are averaged into one key and one value, and where these
// stand among the pooled rows of the whole sequence.
//
// Groups begin at the start of a document and hold `rate` slots, which divides the chunk size, so a group lies inside
// one chunk. A group becomes a row once all its slots exist and at least one of them is a key: a landmark slot alone
// (rate 1) makes none. Rows stand in the order of their groups, document after document.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "partition/sequence_grid.h"

namespace ringmark::partition {

class PoolGrid {
 public:
  // The grid outlives this one, and its policy has no sinks.
  PoolGrid(const AttentionProblem& problem, const SequenceGrid& grid, std::int64_t rate);

  std::int64_t rate() const { return rate_; }
  // Of the whole sequence.
  std::int64_t rows() const { return first_row_.back(); }
  RowRange rows_of(ChunkId chunk) const { return {first_row(chunk), first_row(chunk + 1)}; }
  // The keys behind a row of a chunk: `index` counts the rows of the chunk.
  Range<TokenId> keys_of(ChunkId chunk, std::int64_t index) const;
  // Rows of the document's groups before `group`, and of all documents before it: where the row of the group is, if it
  // has one. `group` may be the number of the document's whole groups.
  std::int64_t row_at(const Document& document, std::int64_t group) const;

 private:
  std::int64_t first_row(ChunkId chunk) const { return first_row_[static_cast<std::size_t>(chunk.value())]; }

  const SequenceGrid& grid_;
  std::int64_t rate_;
  std::vector<std::int64_t> first_row_;  // by chunk, and once more behind the last
};

}  // namespace ringmark::partition
