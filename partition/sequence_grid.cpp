#include "partition/sequence_grid.h"

#include <algorithm>

namespace ringmark::partition {
namespace {

// First chunk boundary at or below the window of a query, relative to its document, in chunks.
std::int64_t first_window_chunk(std::int64_t query, std::int64_t window, std::int64_t chunk_size) {
  if (window <= 0) return query / chunk_size;
  const std::int64_t oldest = query - window + 1;
  return oldest <= 0 ? 0 : oldest / chunk_size;
}

}  // namespace

SequenceGrid::SequenceGrid(const AttentionProblem& problem, const AttentionPolicy& policy)
    : tokens_(problem.tokens),
      chunk_size_(problem.chunk_size),
      chunk_count_(0),
      window_(policy.window),
      edge_(policy.edge),
      segment_(policy.segment),
      sinks_(policy.sinks),
      landmark_slots_(problem.landmark_slots),
      selects_(policy.selects()) {
  std::vector<std::int64_t> starts = problem.cu_seqlens;
  if (starts.empty()) starts = {0, problem.tokens};
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::int64_t length = starts[i + 1] - starts[i];
    if (length == 0) continue;
    const std::int64_t chunks = (length + chunk_size_ - 1) / chunk_size_;
    documents_.push_back(
        {{TokenId(starts[i]), TokenId(starts[i + 1])}, {ChunkId(chunk_count_), ChunkId(chunk_count_ + chunks)}});
    chunk_count_ += chunks;
  }
}

const Document& SequenceGrid::document_of(TokenId token) const {
  const auto after = std::upper_bound(documents_.begin(), documents_.end(), token,
                                      [](TokenId t, const Document& d) { return t < d.tokens.begin; });
  return *(after - 1);
}

const Document& SequenceGrid::document_of(ChunkId chunk) const {
  const auto after = std::upper_bound(documents_.begin(), documents_.end(), chunk,
                                      [](ChunkId c, const Document& d) { return c < d.chunks.begin; });
  return *(after - 1);
}

ChunkId SequenceGrid::chunk_of(TokenId token) const {
  const Document& document = document_of(token);
  return document.chunks.begin + (token - document.tokens.begin) / chunk_size_;
}

Range<TokenId> SequenceGrid::tokens_of(ChunkId chunk) const {
  const Document& document = document_of(chunk);
  const TokenId begin = document.tokens.begin + (chunk - document.chunks.begin) * chunk_size_;
  return {begin, std::min(begin + chunk_size_, document.tokens.end)};
}

Range<TokenId> SequenceGrid::keys_of(ChunkId chunk) const {
  Range<TokenId> keys = tokens_of(chunk);
  if (landmark_slots_ && keys.size() == chunk_size_) keys.end = keys.end - 1;
  const TokenId first_after_sinks = document_of(chunk).tokens.begin + sinks_;
  keys.begin = std::min(keys.end, std::max(keys.begin, first_after_sinks));
  return keys;
}

bool SequenceGrid::has_landmark(ChunkId chunk) const {
  return tokens_of(chunk).size() == chunk_size_ && !keys_of(chunk).empty();
}

bool SequenceGrid::is_key(TokenId token) const {
  if (!landmark_slots_) return true;
  return (token - document_of(token).tokens.begin) % chunk_size_ != chunk_size_ - 1;
}

std::int64_t SequenceGrid::window_start(std::int64_t query) const {
  switch (edge_) {
    case WindowEdge::kChunk: return first_window_chunk(query, window_, chunk_size_) * chunk_size_;
    case WindowEdge::kToken: return std::max<std::int64_t>(0, query - window_ + 1);
    case WindowEdge::kSegment: return std::max<std::int64_t>(0, query / segment_ * segment_ - window_);
  }
  return 0;
}

Range<TokenId> SequenceGrid::window_of(TokenId query) const {
  const TokenId start = document_of(query).tokens.begin;
  return {start + window_start(query - start), query + 1};
}

Range<TokenId> SequenceGrid::sinks_of(TokenId query) const {
  const TokenId start = document_of(query).tokens.begin;
  return {start, std::min(start + sinks_, window_of(query).begin)};
}

Range<ChunkId> SequenceGrid::eligible(TokenId query) const {
  const Document& document = document_of(query);
  const ChunkId origin = document.chunks.begin;
  if (!selects_) return {origin, origin};
  // Sinks that swallow every ordinary token of a chunk leave it nothing to choose.
  const std::int64_t ordinary = chunk_size_ - (landmark_slots_ ? 1 : 0);
  const ChunkId first = origin + (sinks_ < ordinary ? 0 : (sinks_ - ordinary) / chunk_size_ + 1);
  const ChunkId end = origin + first_window_chunk(query - document.tokens.begin, window_, chunk_size_);
  return {first, std::max(first, end)};
}

}  // namespace ringmark::partition
