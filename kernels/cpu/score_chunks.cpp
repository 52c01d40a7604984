#include "kernels/score_chunks.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/score_tile.h"

namespace ringmark::kernels {
namespace {

// A whole number of register tiles of both instruction sets or nearly so; queries, one panel and the strip of scores
// then fit the L1 cache at head_dim 64.
constexpr std::int64_t kTileRows = 42;

using PositionRange = Range<std::int64_t>;

// Where the eligible chunks of every row stand in the list of landmarks. The list may have gaps.
std::vector<PositionRange> positions_of(std::span<const Range<ChunkId>> eligible, const std::vector<ChunkId>& chunks) {
  const auto position_of = [&](ChunkId chunk) {
    return std::lower_bound(chunks.begin(), chunks.end(), chunk) - chunks.begin();
  };
  std::vector<PositionRange> positions(eligible.size());
  for (std::size_t row = 0; row < eligible.size(); ++row) {
    const bool repeats = row > 0 && eligible[row] == eligible[row - 1];
    positions[row] =
        repeats ? positions[row - 1] : PositionRange{position_of(eligible[row].begin), position_of(eligible[row].end)};
  }
  return positions;
}

// quest: the part above 0, then the part below it.
void split_by_sign(float* query, std::int64_t head_dim) {
  for (std::int64_t i = 0; i < head_dim; ++i) {
    query[head_dim + i] = std::min(query[i], 0.0f);
    query[i] = std::max(query[i], 0.0f);
  }
}

// What one thread needs to score a tile; its size depends on neither the number of rows nor of chunks.
class TileWorkspace {
 public:
  TileWorkspace(const LandmarkShape& shape, std::int64_t topk)
      : depth_(shape.head_dim),
        topk_(topk),
        slack_(std::max<std::int64_t>(topk, 96)),
        capacity_(cpu::candidate_capacity(topk, slack_)),
        queries_(size(kTileRows * shape.head_dim)),
        scores_(size(kTileRows * cpu::kStripChunks)),
        lanes_(size(shape.vectors == 1 ? 0 : kTileRows * PackedLandmarks::kPanel)),
        candidate_scores_(size(kTileRows * capacity_)),
        candidate_positions_(size(kTileRows * capacity_)),
        orders_(size(kTileRows * cpu::kMaxRanked)),
        chunk_sums_(size(shape.vectors == 1 ? 0 : kTileRows)),
        rows_(size(kTileRows)),
        active_(size(kTileRows)),
        active_queries_(size(kTileRows)) {}

  void set_row(std::int64_t slot, const RowsView& queries, std::int64_t row, std::int64_t head, float scale,
               PositionRange eligible) {
    float* query = queries_.data() + slot * depth_;
    queries.load(row, head, query);
    for (std::int64_t i = 0; i < queries.head_dim; ++i) query[i] *= scale;
    if (depth_ != queries.head_dim) split_by_sign(query, queries.head_dim);
    cpu::ScoreRow& state = rows_[size(slot)];
    state = cpu::ScoreRow();
    state.query = query;
    state.begin = eligible.begin;
    state.end = eligible.end;
    std::fill_n(state.best.group_best, cpu::kGroups, -std::numeric_limits<float>::infinity());
    state.order = orders_.data() + slot * cpu::kMaxRanked;
    if (!chunk_sums_.empty()) state.chunk_sum = &chunk_sums_[size(slot)];
    state.best.scores = candidate_scores_.data() + slot * capacity_;
    state.best.positions = candidate_positions_.data() + slot * capacity_;
  }

  void score(std::int64_t rows, const PackedLandmarks& landmarks, std::int64_t landmark_head) {
    const cpu::ScoreTile tile = {.rows = rows_.data(),
                                 .row_count = rows,
                                 .panels = landmarks.panel(landmark_head, 0),
                                 .bias = landmarks.bias(landmark_head, 0),
                                 .head_dim = landmarks.shape().head_dim,
                                 .vectors = landmarks.shape().vectors,
                                 .topk = topk_,
                                 .logit_cap = landmarks.shape().logit_cap,
                                 .slack = slack_,
                                 .scores = scores_.data(),
                                 .lanes = lanes_.data(),
                                 .active = active_.data(),
                                 .queries = active_queries_.data()};
    if (cpu::active_isa() == cpu::Isa::kAvx512) {
      cpu::score_tile_avx512(tile);
    } else {
      cpu::score_tile_avx2(tile);
    }
  }

  const LogSum& sum(std::int64_t slot) const { return rows_[size(slot)].sum.total; }

  // The best candidates in contract order; positions become chunk ids.
  void take_list(std::int64_t slot, const std::vector<ChunkId>& chunks, std::span<Candidate> list) {
    const cpu::ScoreRow& row = rows_[size(slot)];
    const cpu::CandidateBuffer& best = row.best;
    const std::size_t used = std::min(list.size(), size(best.held));
    if (best.held > cpu::kMaxRanked) return take_sorted(best, chunks, list.first(used));
    for (std::size_t place = 0; place < used; ++place) {
      list[place] = candidate(best, row.order[place], chunks);
    }
  }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  static Candidate candidate(const cpu::CandidateBuffer& best, std::int64_t i, const std::vector<ChunkId>& chunks) {
    return {best.scores[i], static_cast<std::int32_t>(chunks[size(best.positions[i])].value())};
  }

  void take_sorted(const cpu::CandidateBuffer& best, const std::vector<ChunkId>& chunks, std::span<Candidate> list) {
    sorted_.clear();
    for (std::int64_t i = 0; i < best.held; ++i) sorted_.push_back(candidate(best, i, chunks));
    std::sort(sorted_.begin(), sorted_.end(), better);
    std::copy_n(sorted_.begin(), list.size(), list.begin());
  }

  std::int64_t depth_;  // components of a landmark
  std::int64_t topk_;
  std::int64_t slack_;
  std::int64_t capacity_;
  std::vector<float> queries_;
  std::vector<float> scores_;
  std::vector<float> lanes_;
  std::vector<float> candidate_scores_;
  std::vector<std::int32_t> candidate_positions_;
  std::vector<std::int16_t> orders_;
  std::vector<cpu::ChunkSum> chunk_sums_;
  std::vector<cpu::ScoreRow> rows_;
  std::vector<cpu::ScoreRow*> active_;
  std::vector<const float*> active_queries_;
  std::vector<Candidate> sorted_;
};

}  // namespace

CandidateLists score_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                            const partition::SequenceGrid& grid, const RowsView& queries,
                            std::span<const TokenId> tokens, const PackedLandmarks& landmarks, int threads) {
  std::vector<Range<ChunkId>> eligible;
  eligible.reserve(tokens.size());
  for (const TokenId token : tokens) eligible.push_back(grid.eligible(token));
  return score_chunks(problem, policy, eligible, queries, landmarks, threads);
}

CandidateLists score_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                            std::span<const Range<ChunkId>> eligible, const RowsView& queries,
                            const PackedLandmarks& landmarks, int threads) {
  const std::int64_t rows = std::ssize(eligible);
  CandidateLists lists(rows, problem.heads, policy.topk);
  if (rows == 0 || landmarks.chunks().empty()) return lists;

  const std::vector<PositionRange> positions = positions_of(eligible, landmarks.chunks());
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  std::vector<TileWorkspace> workspaces(static_cast<std::size_t>(threads),
                                        TileWorkspace(landmarks.shape(), policy.topk));
#pragma omp parallel num_threads(threads)
  {
    TileWorkspace& workspace = workspaces[static_cast<std::size_t>(omp_get_thread_num())];
    // Head by head: the landmarks of one head stay in the L2 cache over many tiles.
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < tiles * problem.heads; ++item) {
      const std::int64_t head = item / tiles;
      // Later tiles see more chunks; the heaviest go first.
      const std::int64_t first = (tiles - 1 - item % tiles) * kTileRows;
      const std::int64_t count = std::min(kTileRows, rows - first);
      for (std::int64_t slot = 0; slot < count; ++slot) {
        workspace.set_row(slot, queries, first + slot, head, problem.scale,
                          positions[static_cast<std::size_t>(first + slot)]);
      }
      workspace.score(count, landmarks, landmarks.shape().head_of(head, problem.heads));
      for (std::int64_t slot = 0; slot < count; ++slot) {
        workspace.take_list(slot, landmarks.chunks(), lists.list(first + slot, head));
        lists.sum(first + slot, head) = workspace.sum(slot);
      }
    }
  }
  return lists;
}

}  // namespace ringmark::kernels
