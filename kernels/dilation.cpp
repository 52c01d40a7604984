#include "kernels/dilation.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace ringmark::kernels {

void validate(std::span<const Dilation> dilations) {
  if (dilations.empty()) fail_bad_input("dilation holds no pair segment:rate; at least one is needed");
  for (const Dilation& dilation : dilations) {
    if (dilation.segment >= 1 && dilation.rate >= 1 && dilation.rate <= dilation.segment) continue;
    fail_bad_input(
        fmt::format("dilation = {}:{}: the rate is outside [1, the segment]", dilation.segment, dilation.rate));
  }
}

Range<TokenId> segment_of(const partition::SequenceGrid& grid, const Dilation& dilation, TokenId token) {
  const Range<TokenId> document = grid.document_of(token).tokens;
  const TokenId begin = token - (token - document.begin) % dilation.segment;
  // Compared as lengths: a segment may be longer than ids reach.
  return {begin, document.end - begin > dilation.segment ? begin + dilation.segment : document.end};
}

std::vector<Range<TokenId>> stretches_of(const partition::SequenceGrid& grid, const Dilation& dilation) {
  std::vector<Range<TokenId>> stretches;
  const std::int64_t whole = std::min(dilation.segment, grid.tokens());
  const std::int64_t length = whole / dilation.rate < kStretchKeys ? whole : kStretchKeys * dilation.rate;
  for (const partition::Document& document : grid.documents()) {
    for (TokenId begin = document.tokens.begin; begin < document.tokens.end;) {
      const TokenId end = segment_of(grid, dilation, begin).end;
      stretches.push_back({begin, end - begin > length ? begin + length : end});
      begin = stretches.back().end;
    }
  }
  return stretches;
}

}  // namespace ringmark::kernels
