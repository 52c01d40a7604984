// The chunks that a (token, kv head) of NSA takes: the first of the document, its own and the one before, then the most
// important ones; equal importance by ascending id. Source: docs/numerics.md, "NSA".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

class BlockChoice {
 public:
  // topk counts the forced chunks too; at least NsaPolicy::kForced.
  explicit BlockChoice(std::int64_t topk) : topk_(topk) {}

  // Nothing is chosen but the forced chunks of this query.
  void start(const partition::SequenceGrid& grid, TokenId query);
  // Ids ascending; forced ones are passed over.
  void offer(ChunkId chunk, float importance);
  // The chosen ids ascending, -1 in the slots left over. topk slots.
  void write(std::span<std::int32_t> slots) const;

 private:
  struct Candidate {
    float importance;
    std::int32_t chunk;
  };

  std::int64_t topk_;
  std::vector<std::int32_t> forced_;   // ascending
  std::vector<Candidate> candidates_;  // importance descending, id ascending
};

}  // namespace ringmark::kernels
