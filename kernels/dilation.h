// Dilated attention (LongNet, arXiv 2307.02486): a document is cut into segments of w tokens, and of a segment only
// every r-th token takes part, another one for each head, so that r heads together see every token.
//
// A token at place o of its document stands at u = o mod w of its segment; for head h it takes part iff
// u mod r == h mod r. A row that takes part attends to the keys up to itself that take part in its segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

struct Dilation {
  std::int64_t segment = 1;  // w
  std::int64_t rate = 1;     // r, 1..w
};

// Throws Error(kBadInput) naming the pair and the limit; at least one pair is needed.
void validate(std::span<const Dilation> dilations);

// The token's segment: it ends with its document at the latest.
Range<TokenId> segment_of(const partition::SequenceGrid& grid, const Dilation& dilation, TokenId token);

// Tokens of a stretch that take part for one head, at most.
inline constexpr std::int64_t kStretchKeys = 64;

// Every segment in pieces of kStretchKeys x rate tokens, ascending over the whole sequence: what a head sees of a
// stretch is packed as one chunk is elsewhere. They depend on nothing but the sequence and the pair.
std::vector<Range<TokenId>> stretches_of(const partition::SequenceGrid& grid, const Dilation& dilation);

}  // namespace ringmark::kernels
