#include "partition/layout.h"

#include <algorithm>
#include <numeric>

namespace ringmark::partition {
namespace {

std::vector<std::int32_t> deal_contiguous(const SequenceGrid& grid, int ranks) {
  std::vector<std::int32_t> owner(static_cast<std::size_t>(grid.chunk_count()));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = grid.chunk_count() * rank / ranks;
    const std::int64_t end = grid.chunk_count() * (rank + 1) / ranks;
    std::fill(owner.begin() + begin, owner.begin() + end, rank);
  }
  return owner;
}

// Segments are dealt 0, 1, .., R-1, R-1, .., 1, 0. A document of at least 2R chunks gets a round of its own, so that
// its first and last segments pair up; shorter ones share a deal that goes on over document ends, so that many of them
// are spread evenly.
std::vector<std::int32_t> deal_zigzag(const SequenceGrid& grid, int ranks) {
  std::vector<std::int32_t> owner(static_cast<std::size_t>(grid.chunk_count()));
  const std::int64_t round = 2 * std::int64_t{ranks};
  std::int64_t dealt_to_short = 0;
  for (const Document& document : grid.documents()) {
    const std::int64_t chunks = document.chunks.size();
    const std::int64_t segments = std::min(chunks, round);
    const std::int64_t first_place = segments == round ? 0 : dealt_to_short;
    if (segments < round) dealt_to_short += segments;
    for (std::int64_t s = 0; s < segments; ++s) {
      const std::int64_t place = (first_place + s) % round;
      const std::int64_t rank = place < ranks ? place : round - 1 - place;
      const auto first = owner.begin() + document.chunks.begin.value();
      std::fill(first + chunks * s / segments, first + chunks * (s + 1) / segments, static_cast<std::int32_t>(rank));
    }
  }
  return owner;
}

std::vector<std::int32_t> deal_in_rotation(const SequenceGrid& grid, int ranks) {
  std::vector<std::int32_t> owner(static_cast<std::size_t>(grid.chunk_count()));
  for (std::size_t c = 0; c < owner.size(); ++c) {
    owner[c] = static_cast<std::int32_t>(c % static_cast<std::size_t>(ranks));
  }
  return owner;
}

std::vector<std::int32_t> deal(const SequenceGrid& grid, int ranks, Balance balance) {
  switch (balance) {
    case Balance::kContiguous: return deal_contiguous(grid, ranks);
    case Balance::kZigzag: return deal_zigzag(grid, ranks);
    case Balance::kRotate: return deal_in_rotation(grid, ranks);
  }
  return {};
}

std::int64_t pairs_of(const SequenceGrid& grid, TokenId query) {
  const std::int64_t window_chunks = grid.chunk_of(query) + 1 - grid.chunk_of(grid.window_of(query).begin);
  return window_chunks + grid.eligible(query).size();
}

// The pairs of all queries of one chunk. They follow from the chunk in which the window begins, which never falls:
// where both ends agree, all do.
std::int64_t pairs_of(const SequenceGrid& grid, Range<TokenId> queries) {
  const std::int64_t first = pairs_of(grid, queries.begin);
  if (first == pairs_of(grid, queries.end - 1)) return first * queries.size();
  std::int64_t pairs = 0;
  for (TokenId query = queries.begin; query < queries.end; ++query) pairs += pairs_of(grid, query);
  return pairs;
}

}  // namespace

std::string_view name_of(Balance balance) {
  switch (balance) {
    case Balance::kContiguous: return "contiguous";
    case Balance::kZigzag: return "zigzag";
    case Balance::kRotate: return "rotate";
  }
  return "?";
}

Layout make_layout(const SequenceGrid& grid, int ranks, Balance balance) {
  Layout layout;
  layout.owner_ = deal(grid, ranks, balance);
  layout.chunks_of_.resize(static_cast<std::size_t>(ranks));
  for (std::int64_t c = 0; c < grid.chunk_count(); ++c) {
    const auto rank = static_cast<std::size_t>(layout.owner_[static_cast<std::size_t>(c)]);
    layout.slot_.push_back(static_cast<std::int64_t>(layout.chunks_of_[rank].size()));
    layout.chunk_tokens_.push_back(grid.tokens_of(ChunkId(c)));
    layout.chunks_of_[rank].push_back(ChunkId(c));
  }
  layout.count_rows();
  return layout;
}

Layout leave_out(Layout layout, const std::vector<bool>& chunks) {
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c]) layout.chunk_tokens_[c].end = layout.chunk_tokens_[c].begin;
  }
  layout.count_rows();
  return layout;
}

void Layout::count_rows() {
  first_row_.clear();
  token_count_.assign(chunks_of_.size(), 0);
  for (std::size_t c = 0; c < owner_.size(); ++c) {
    std::int64_t& count = token_count_[static_cast<std::size_t>(owner_[c])];
    first_row_.push_back(count);
    count += chunk_tokens_[c].size();
  }
}

std::int64_t Layout::token_count() const {
  return std::accumulate(token_count_.begin(), token_count_.end(), std::int64_t{0});
}

std::vector<Range<TokenId>> Layout::token_runs(RankId rank) const {
  std::vector<Range<TokenId>> runs;
  for (const ChunkId chunk : chunks_of(rank)) {
    const Range<TokenId> tokens = chunk_tokens_[static_cast<std::size_t>(chunk.value())];
    if (tokens.empty()) continue;
    if (!runs.empty() && runs.back().end == tokens.begin) {
      runs.back().end = tokens.end;
    } else {
      runs.push_back(tokens);
    }
  }
  return runs;
}

std::vector<TokenId> Layout::tokens_of(RankId rank) const {
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<std::size_t>(token_count(rank)));
  for (const Range<TokenId>& run : token_runs(rank)) {
    for (TokenId token = run.begin; token < run.end; ++token) tokens.push_back(token);
  }
  return tokens;
}

WorkBalance measure_balance(const SequenceGrid& grid, const Layout& layout) {
  WorkBalance balance;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::int64_t pairs = 0;
    for (const ChunkId chunk : layout.chunks_of(RankId(rank))) {
      if (layout.has_rows(chunk)) pairs += pairs_of(grid, grid.tokens_of(chunk));
    }
    balance.pairs.push_back(pairs);
  }
  const auto total = std::accumulate(balance.pairs.begin(), balance.pairs.end(), std::int64_t{0});
  const double mean = static_cast<double>(total) / layout.ranks();
  const auto most = static_cast<double>(*std::max_element(balance.pairs.begin(), balance.pairs.end()));
  balance.max_over_mean = mean > 0 ? most / mean : 1.0;
  return balance;
}

}  // namespace ringmark::partition
