#include "runtime/selector.h"

#include <algorithm>
#include <array>

#include "comm/current_step.h"
#include "core/error.h"
#include "kernels/score_cached.h"
#include "kernels/score_chunks.h"

namespace ringmark::runtime {
namespace {

using kernels::Candidate;
using kernels::CandidateLists;
using kernels::LogSum;
using kernels::PackedLandmarks;
using kernels::Selection;

// Rows of one rank that visit the others at a time under `scores`, at most: bounds the candidate lists that exist at
// once, as the rows of a tile do under `landmarks`.
constexpr std::int64_t kVisitingRows = 1024;

std::int64_t rows_to_do(const SelectorInput& input) {
  return static_cast<std::int64_t>(input.tokens.size()) - input.first_row;
}

// A landmark's logit is compared with those of other landmarks alone: the window has no share.
std::span<const float> lse_of(const SelectorInput& input, RowRange rows) {
  if (input.policy.scorer == Scorer::kLandmark) return {};
  const std::int64_t heads = input.problem.heads;
  return input.lse_window.subspan(static_cast<std::size_t>(rows.begin * heads),
                                  static_cast<std::size_t>(rows.size() * heads));
}

// The known landmarks of a table, and what scores them.
class KnownLandmarks {
 public:
  KnownLandmarks(const SelectorInput& input, const kvstore::LandmarkTable& table)
      : input_(input), near_(table.pack()), far_(input.cache == nullptr ? nothing(table) : turned_back(table)) {}

  CandidateLists score(const RowsView& queries, std::span<const TokenId> tokens) const {
    if (input_.cache == nullptr) {
      return kernels::score_chunks(input_.problem, input_.policy, input_.grid, queries, tokens, near_, input_.threads);
    }
    return kernels::score_cached_chunks(input_.problem, input_.policy, *input_.cache, queries, tokens, near_, far_,
                                        input_.threads);
  }

 private:
  static PackedLandmarks nothing(const kvstore::LandmarkTable& table) { return {table.shape(), {}}; }
  PackedLandmarks turned_back(const kvstore::LandmarkTable& table) const {
    return table.pack([&](ChunkId chunk, std::span<float> record) {
      const auto keys = static_cast<std::size_t>(table.shape().bias_offset());
      input_.cache->turn_back_landmark(chunk, record.first(keys));
    });
  }

  const SelectorInput& input_;
  PackedLandmarks near_;  // as they are; with stingy positions only near chunks are scored by these
  PackedLandmarks far_;
};

std::int64_t select_with_all_landmarks(const SelectorInput& input, const KnownLandmarks& landmarks,
                                       Selection& selection, ProgressSink& progress) {
  const auto rows = static_cast<std::int64_t>(input.tokens.size());
  std::int64_t begin = input.first_row;
  while (begin < rows && !input.stop()) {
    const RowRange tile{begin, std::min(rows, begin + input.tile_rows)};
    const CandidateLists lists =
        landmarks.score(input.queries.slice(tile.begin, tile.end),
                        input.tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(tile.size())));
    kernels::select_chunks({&lists, 1}, lse_of(input, tile), tile.begin, selection, input.threads);
    begin = tile.end;
    progress.advance(begin - input.first_row);
  }
  return begin;
}

// One round of the `scores` merge: which rows of each rank visit, back to back in rank order.
struct Visit {
  std::vector<RowRange> rows;       // by rank, local rows
  std::vector<std::int64_t> first;  // by rank, position of its rows among all visitors
  std::vector<TokenId> tokens;      // of all visitors
  std::vector<std::byte> queries;   // of all visitors
};

class ScoresMerge {
 public:
  ScoresMerge(comm::Communicator& communicator, const SelectorInput& input, const ScoreRows& score)
      : communicator_(communicator),
        input_(input),
        score_(score),
        visiting_rows_(std::min(kVisitingRows, input.tile_rows)),
        next_(communicator.gather_sizes("share what has chosen", input.first_row)) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      tokens_of_.push_back(input.layout.tokens_of(RankId(rank)));
    }
  }

  std::int64_t run(Selection& selection, ProgressSink& progress) {
    for (std::int64_t round = 0;; ++round) {
      const comm::EnterStep step("select round", round);
      if (!rows_are_left() || stop_anywhere()) break;
      const Visit visit = gather_queries();
      const RowRange mine = visit.rows[static_cast<std::size_t>(communicator_.rank())];
      const std::vector<CandidateLists> parts = exchange_lists(visit);
      kernels::select_chunks(parts, lse_of(input_, mine), mine.begin, selection, input_.threads);
      for (std::size_t rank = 0; rank < next_.size(); ++rank) next_[rank] = visit.rows[rank].end;
      progress.advance(mine.end - input_.first_row);
    }
    return next_[static_cast<std::size_t>(communicator_.rank())];
  }

 private:
  std::int64_t rows_of(std::size_t rank) const { return static_cast<std::int64_t>(tokens_of_[rank].size()); }

  bool rows_are_left() const {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < rows_of(rank)) return true;
    }
    return false;
  }

  // All ranks take part in every round, so they end after the same one.
  bool stop_anywhere() const {
    std::array<std::int64_t, 1> asked = {input_.stop() ? 1 : 0};
    communicator_.all_reduce_max("agree to go on", asked);
    return asked[0] != 0;
  }

  Visit gather_queries() const {
    Visit visit;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const std::vector<TokenId>& tokens = tokens_of_[rank];
      const RowRange range{next_[rank], std::min(next_[rank] + visiting_rows_, rows_of(rank))};
      visit.rows.push_back(range);
      visit.first.push_back(static_cast<std::int64_t>(visit.tokens.size()));
      visit.tokens.insert(visit.tokens.end(), tokens.begin() + range.begin, tokens.begin() + range.end);
    }
    const auto row_bytes =
        static_cast<std::size_t>(input_.problem.heads * input_.problem.head_dim * size_of(input_.problem.dtype));
    visit.queries.resize(visit.tokens.size() * row_bytes);
    std::vector<comm::Bytes> all;
    for (std::size_t rank = 0; rank < visit.rows.size(); ++rank) {
      all.push_back(comm::Bytes(visit.queries)
                        .subspan(static_cast<std::size_t>(visit.first[rank]) * row_bytes,
                                 static_cast<std::size_t>(visit.rows[rank].size()) * row_bytes));
    }
    const RowRange mine = visit.rows[static_cast<std::size_t>(communicator_.rank())];
    const RowsView own = input_.queries.slice(mine.begin, mine.end);
    communicator_.all_gather("gather queries", {own.data, static_cast<std::size_t>(own.bytes())}, all);
    return visit;
  }

  // Scores all visitors against the own landmarks and sends each list home; returns one part a rank for the own rows.
  std::vector<CandidateLists> exchange_lists(const Visit& visit) const {
    const std::int64_t heads = input_.problem.heads;
    const std::int64_t topk = input_.policy.topk;
    const RowsView queries{visit.queries.data(), input_.problem.dtype, static_cast<std::int64_t>(visit.tokens.size()),
                           heads, input_.problem.head_dim};
    const CandidateLists scored = score_(queries, visit.tokens);
    const std::int64_t own_rows = visit.rows[static_cast<std::size_t>(communicator_.rank())].size();
    std::vector<CandidateLists> parts;
    std::vector<comm::ConstBytes> send_candidates, send_sums;
    for (std::size_t rank = 0; rank < visit.rows.size(); ++rank) {
      parts.emplace_back(own_rows, heads, topk);
      const auto first = static_cast<std::size_t>(visit.first[rank] * heads);
      const auto count = static_cast<std::size_t>(visit.rows[rank].size() * heads);
      const auto k = static_cast<std::size_t>(topk);
      send_candidates.push_back(std::as_bytes(std::span(scored.candidates).subspan(first * k, count * k)));
      send_sums.push_back(std::as_bytes(std::span(scored.sums).subspan(first, count)));
    }
    std::vector<comm::Bytes> receive_candidates, receive_sums;
    for (CandidateLists& part : parts) {
      receive_candidates.push_back(std::as_writable_bytes(std::span(part.candidates)));
      receive_sums.push_back(std::as_writable_bytes(std::span(part.sums)));
    }
    communicator_.all_to_all("gather score lists", send_candidates, receive_candidates);
    communicator_.all_to_all("gather score sums", send_sums, receive_sums);
    return parts;
  }

  comm::Communicator& communicator_;
  const SelectorInput& input_;
  const ScoreRows& score_;
  std::int64_t visiting_rows_;
  std::vector<std::int64_t> next_;  // by rank, the first row that has not chosen
  std::vector<std::vector<TokenId>> tokens_of_;
};

// The other ranks' queries visit this rank; its own queries' lists come back from every other rank.
std::int64_t score_bytes(const AttentionProblem& problem, const AttentionPolicy& policy,
                         const partition::Layout& layout, RankId rank) {
  const std::int64_t own = layout.token_count(rank);
  const std::int64_t query_bytes = problem.head_dim * size_of(problem.dtype);
  const std::int64_t list_bytes =
      policy.topk * static_cast<std::int64_t>(sizeof(Candidate)) + static_cast<std::int64_t>(sizeof(LogSum));
  return problem.heads * ((layout.token_count() - own) * query_bytes + own * (layout.ranks() - 1) * list_bytes);
}

}  // namespace

MergeCost merge_cost(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::Layout& layout) {
  const auto shape = kernels::LandmarkShape::of(problem, policy.scorer);
  MergeCost cost;
  std::int64_t chunks = 0, least_chunks = problem.chunks_at_most();
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const auto owned = static_cast<std::int64_t>(layout.chunks_of(RankId(rank)).size());
    chunks += owned;
    least_chunks = std::min(least_chunks, owned);
    cost.score_bytes = std::max(cost.score_bytes, score_bytes(problem, policy, layout, RankId(rank)));
  }
  cost.table_bytes = kvstore::LandmarkTable::bytes_of(shape, chunks);
  cost.landmark_bytes = kvstore::LandmarkTable::bytes_of(shape, chunks - least_chunks);
  return cost;
}

std::int64_t received_bytes(const SelectorInput& input, RankId rank, Merge merge) {
  if (!input.policy.selects()) return 0;
  if (merge == Merge::kScores) return score_bytes(input.problem, input.policy, input.layout, rank);
  const auto shape = kernels::LandmarkShape::of(input.problem, input.policy.scorer);
  const auto owned = static_cast<std::int64_t>(input.layout.chunks_of(rank).size());
  return kvstore::LandmarkTable::bytes_of(shape, input.grid.chunk_count() - owned);
}

Merge choose_merge(Merge asked, const MergeCost& cost, std::int64_t table_budget) {
  if (asked != Merge::kAuto) return asked;
  const bool fits = cost.table_bytes <= table_budget;
  return fits && cost.landmark_bytes <= cost.score_bytes ? Merge::kLandmarks : Merge::kScores;
}

std::int64_t merge_scores(comm::Communicator& communicator, const SelectorInput& input, const ScoreRows& score,
                          Selection& selection, ProgressSink& progress) {
  progress.begin("select", rows_to_do(input));
  const std::int64_t end = ScoresMerge(communicator, input, score).run(selection, progress);
  progress.end();
  return end;
}

std::int64_t select_chunks(comm::Communicator& communicator, const SelectorInput& input,
                           kvstore::LandmarkTable& landmarks, Merge merge, Selection& selection,
                           ProgressSink& progress) {
  require(merge != Merge::kAuto, "the merge strategy has been chosen");
  require(input.policy.selects(), "the policy selects");
  if (merge == Merge::kScores) {
    const KnownLandmarks own(input, landmarks);
    return merge_scores(
        communicator, input,
        [&](const RowsView& queries, std::span<const TokenId> tokens) { return own.score(queries, tokens); }, selection,
        progress);
  }
  progress.begin("select", rows_to_do(input));
  landmarks.gather(communicator);
  const std::int64_t end = select_with_all_landmarks(input, KnownLandmarks(input, landmarks), selection, progress);
  progress.end();
  return end;
}

}  // namespace ringmark::runtime
