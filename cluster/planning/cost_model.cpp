#include "cluster/planning/cost_model.h"

#include <algorithm>
#include <vector>

#include "cluster/planning/window_runs.h"
#include "kernels/landmarks.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"

namespace ringmark::cluster {
namespace {

using partition::Document;
using partition::SequenceGrid;

// Queries of a tile on a GPU: its 128 rows are those of all heads of a group (kernels/cuda/attend.h).
std::int64_t queries_of_tile(const AttentionProblem& problem) {
  constexpr std::int64_t kTileRows = 128;
  return std::max<std::int64_t>(1, kTileRows * problem.kv_heads / problem.heads);
}

double flops_of_key(const AttentionProblem& problem) {
  return 4.0 * static_cast<double>(problem.heads * problem.head_dim);
}

// Landmark slots among the first `slots` slots of a document.
std::int64_t landmark_slots(const AttentionProblem& problem, std::int64_t slots) {
  return problem.landmark_slots ? slots / problem.chunk_size : 0;
}

// Keys among the slots [begin, end) of a document.
std::int64_t keys_in(const AttentionProblem& problem, std::int64_t begin, std::int64_t end) {
  return end - begin - (landmark_slots(problem, end) - landmark_slots(problem, begin));
}

// The keys that rows [first, end) of one chunk see, slots of the document, when their windows all begin at `start`.
std::int64_t keys_of_rows(const AttentionProblem& problem, std::int64_t start, Range<std::int64_t> rows) {
  const std::int64_t count = rows.size();
  const std::int64_t slots = count * (rows.begin - start + 1) + count * (count - 1) / 2;
  // A row sees the landmark slots before its chunk; the last slot of a full chunk sees its own too.
  const std::int64_t below = rows.begin / problem.chunk_size - start / problem.chunk_size;
  const bool closes = rows.end % problem.chunk_size == 0;
  return slots - (problem.landmark_slots ? count * below + (closes ? 1 : 0) : 0);
}

// What rows with one window do.
struct RowSums {
  double window_keys = 0;
  double eligible = 0;  // (row, eligible chunk)
  double chosen = 0;    // (row, chosen chunk)
  double remote = 0;    // of these, of other ranks
  double joined = 0;    // (row, chunk that a row of its tile chose)
};

class Counter {
 public:
  Counter(const AttentionProblem& problem, const AttentionPolicy& policy, const SequenceGrid& grid,
          const partition::Layout& layout, RankId rank, const QueryModel& model)
      : problem_(problem),
        policy_(policy),
        grid_(grid),
        layout_(layout),
        rank_(rank),
        model_(model),
        tile_(queries_of_tile(problem)) {
    // Own chunks before a chunk; a layout of any kind deals them.
    own_before_.assign(static_cast<std::size_t>(grid.chunk_count()) + 1, 0);
    for (std::int64_t c = 0; c < grid.chunk_count(); ++c) {
      const auto at = static_cast<std::size_t>(c);
      own_before_[at + 1] = own_before_[at] + (layout.owner(ChunkId(c)) == rank ? 1 : 0);
    }
  }

  RowSums count() const {
    RowSums sums;
    for (const ChunkId chunk : layout_.chunks_of(rank_)) {
      if (layout_.has_rows(chunk)) add_chunk(chunk, sums);
    }
    return sums;
  }

 private:
  void add_chunk(ChunkId chunk, RowSums& sums) const {
    const TokenId origin = grid_.document_of(chunk).tokens.begin;
    for (const Range<TokenId>& rows : window_runs(grid_, chunk)) {
      add_rows(origin, grid_.window_of(rows.begin).begin, rows, sums);
    }
  }

  void add_rows(TokenId origin, TokenId start, Range<TokenId> rows, RowSums& sums) const {
    const auto count = static_cast<double>(rows.size());
    const std::int64_t keys = keys_of_rows(problem_, start - origin, {rows.begin - origin, rows.end - origin});
    const std::int64_t sinks = keys_in(problem_, 0, grid_.sinks_of(rows.begin).size());
    sums.window_keys += static_cast<double>(keys) + count * static_cast<double>(sinks);
    const Range<ChunkId> eligible = grid_.eligible(rows.begin);
    if (eligible.empty()) return;
    const auto of = static_cast<double>(eligible.size());
    const double chosen = std::min(of, static_cast<double>(policy_.topk));
    const auto own = static_cast<double>(own_before_[static_cast<std::size_t>(eligible.end.value())] -
                                         own_before_[static_cast<std::size_t>(eligible.begin.value())]);
    sums.eligible += count * of;
    sums.chosen += count * chosen;
    sums.remote += count * chosen * (of - own) / of;
    sums.joined += count * chosen * expected_union_ratio(model_, tile_, chosen / of);
  }

  const AttentionProblem& problem_;
  const AttentionPolicy& policy_;
  const SequenceGrid& grid_;
  const partition::Layout& layout_;
  RankId rank_;
  const QueryModel& model_;
  std::int64_t tile_;
  std::vector<std::int64_t> own_before_;  // by chunk, and once more behind the last
};

// (row, own landmark) of the rows of all ranks: a chunk is eligible for every row of its document from the first whose
// window begins behind it.
double visiting_pairs(const AttentionPolicy& policy, const SequenceGrid& grid, const partition::Layout& layout,
                      RankId rank) {
  double pairs = 0;
  for (const ChunkId chunk : layout.chunks_of(rank)) {
    if (!grid.has_landmark(chunk)) continue;
    const Document& document = grid.document_of(chunk);
    const TokenId first = grid.tokens_of(chunk).end + std::max<std::int64_t>(0, policy.window - 1);
    pairs += static_cast<double>(Range<TokenId>{std::min(first, document.tokens.end), document.tokens.end}.size());
  }
  return pairs;
}

}  // namespace

RankWork count_work(const AttentionProblem& problem, const AttentionPolicy& policy, const SequenceGrid& grid,
                    const partition::Layout& layout, RankId rank, const QueryModel& model, runtime::Merge merge) {
  const auto own_chunks = static_cast<std::int64_t>(layout.chunks_of(rank).size());
  const RowSums sums = Counter(problem, policy, grid, layout, rank, model).count();
  RankWork work;
  work.rows = static_cast<double>(layout.token_count(rank));
  work.chunk_bytes = static_cast<double>(kvstore::BlockStore::bytes_of(problem, own_chunks));
  work.window_flops = sums.window_keys * flops_of_key(problem);
  if (!policy.selects()) return work;
  const auto shape = kernels::LandmarkShape::of(problem, policy.scorer);
  const bool gathers = merge != runtime::Merge::kScores;
  work.table_bytes =
      static_cast<double>(kvstore::LandmarkTable::bytes_of(shape, gathers ? grid.chunk_count() : own_chunks));
  const double pairs = gathers ? sums.eligible : visiting_pairs(policy, grid, layout, rank);
  work.score_flops = 2.0 * pairs * static_cast<double>(problem.heads * shape.vectors * shape.head_dim);
  work.needs = sums.remote * static_cast<double>(problem.kv_heads);
  const std::int64_t keys = problem.chunk_size - (problem.landmark_slots ? 1 : 0);
  work.attend_flops = sums.chosen * static_cast<double>(keys) * flops_of_key(problem);
  work.union_flops = sums.joined * static_cast<double>(keys) * flops_of_key(problem);
  return work;
}

double dense_flops(const AttentionProblem& problem, const SequenceGrid& grid) {
  double keys = 0;
  for (const Document& document : grid.documents()) {
    const auto tokens = static_cast<double>(document.tokens.size());
    keys += tokens * (tokens + 1) / 2;
    if (!problem.landmark_slots) continue;
    // The landmark slot of chunk c is no key for the rows from it on.
    const std::int64_t slots = document.tokens.size() / problem.chunk_size;
    const auto chunk = static_cast<double>(problem.chunk_size), count = static_cast<double>(slots);
    keys -= count * (tokens + 1) - chunk * count * (count + 1) / 2;
  }
  return keys * flops_of_key(problem);
}

RankSeconds predict(const RankWork& work, const ComputeRates& rates, double slowdown) {
  RankSeconds seconds;
  if (work.rows <= 0) return seconds;
  const auto of = [&](const StageRate& rate, double units) { return slowdown * rate.seconds(work.rows, units); };
  seconds.store = of(rates.store, work.chunk_bytes);
  seconds.window = of(rates.window, work.window_flops);
  seconds.rest = of(rates.rest, 0.0);
  if (work.table_bytes <= 0) return seconds;
  seconds.landmarks = of(rates.landmarks, work.chunk_bytes);
  seconds.pack = of(rates.pack, work.table_bytes);
  seconds.score = of(rates.score, work.score_flops);
  seconds.plan = of(rates.plan, work.needs);
  seconds.attend = of(rates.attend, rates.attends_unions ? work.union_flops : work.attend_flops);
  return seconds;
}

}  // namespace ringmark::cluster
