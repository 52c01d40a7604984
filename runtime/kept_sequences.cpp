#include "runtime/kept_sequences.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ringmark::runtime {

std::vector<ChunkId> first_chunks(const AttentionProblem& problem) {
  const std::vector<std::int64_t> starts = problem.starts();
  std::vector<ChunkId> first = {ChunkId(0)};
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    first.push_back(first.back() + (starts[s + 1] - starts[s] + problem.chunk_size - 1) / problem.chunk_size);
  }
  return first;
}

KeptSequences::KeptSequences(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks)
    : grid_(problem, policy),
      layout_(partition::make_layout(grid_, ranks, partition::Balance::kRotate)),
      chains_(problem.chunk_size, static_cast<std::int64_t>(problem.starts().size()) - 1) {
  const std::vector<std::int64_t> starts = problem.starts();
  const std::vector<ChunkId> first = first_chunks(problem);
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    places_.push_back({TokenId(starts[s]), first[s], starts[s + 1] - starts[s]});
  }
  lengths_.assign(places_.size(), 0);
}

std::int64_t KeptSequences::chunks_of_length(std::int64_t length) const {
  return (length + grid_.chunk_size() - 1) / grid_.chunk_size();
}

std::vector<TokenId> KeptSequences::place(std::span<const std::int64_t> sequences) const {
  std::vector<std::int64_t> lengths = lengths_;
  std::vector<TokenId> tokens;
  tokens.reserve(sequences.size());
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const std::int64_t sequence = sequences[row];
    if (sequence < 0 || sequence >= count()) {
      fail_bad_input(fmt::format("row {} continues sequence {}; sequences are 0 to {}", row, sequence, count() - 1));
    }
    std::int64_t& length = lengths[static_cast<std::size_t>(sequence)];
    if (length == capacity(sequence)) {
      fail_bad_input(fmt::format("row {} continues sequence {}, which is full at {} tokens", row, sequence, length));
    }
    tokens.push_back(places_[static_cast<std::size_t>(sequence)].first_token + length++);
  }
  return tokens;
}

bool KeptSequences::closes_chunk(TokenId token) const {
  const Range<TokenId> slots = grid_.tokens_of(grid_.chunk_of(token));
  return slots.size() == grid_.chunk_size() && token + 1 == slots.end;
}

void KeptSequences::add_token(std::int64_t sequence, std::optional<std::int64_t> token_id) {
  ++lengths_[static_cast<std::size_t>(sequence)];
  chains_.append(sequence, token_id);
}

void KeptSequences::begin_with(const kvstore::SnapshotManifest& kept) {
  const std::vector<std::int64_t> starts = kept.problem.starts();
  require(starts.size() == places_.size() + 1, "a layer grows from a snapshot of as many sequences");
  const std::vector<ChunkId> first = first_chunks(kept.problem);
  const auto& [hashes, tails] = kept.prefixes;
  for (std::size_t s = 0; s < places_.size(); ++s) {
    lengths_[s] = starts[s + 1] - starts[s];
    const auto chunk = static_cast<std::size_t>(first[s].value());
    const auto full = static_cast<std::size_t>(lengths_[s] / grid_.chunk_size());
    chains_.begin(static_cast<std::int64_t>(s), lengths_[s],
                  hashes.empty() ? std::span<const std::string>() : std::span(hashes).subspan(chunk, full),
                  tails.empty() ? std::span<const std::int64_t>() : tails[s]);
  }
}

std::vector<ChunkPlace> KeptSequences::chunks() const {
  std::vector<ChunkPlace> chunks;
  ChunkId kept(0);
  for (std::size_t s = 0; s < places_.size(); ++s) {
    const std::int64_t full = lengths_[s] / grid_.chunk_size();
    for (std::int64_t n = 0; n < chunks_of_length(lengths_[s]); ++n, ++kept) {
      chunks.push_back({kept, places_[s].first_chunk + n, n < full});
    }
  }
  return chunks;
}

AttentionProblem KeptSequences::kept_problem(const AttentionProblem& problem) const {
  AttentionProblem kept = problem;
  kept.cu_seqlens = {0};
  for (const std::int64_t length : lengths_) kept.cu_seqlens.push_back(kept.cu_seqlens.back() + length);
  kept.tokens = kept.cu_seqlens.back();
  return kept;
}

}  // namespace ringmark::runtime
