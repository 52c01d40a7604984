// Scoring fused with per-head streaming top-K and lse: for every query and query head, the K best eligible chunks of
// the given landmarks and the LogSum of all their scores. No queries x chunks matrix ever exists.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/landmarks.h"
#include "kernels/log_sum.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

struct Candidate {
  float score = 0.0f;
  std::int32_t chunk = -1;  // -1: unused
};

// The order of the top-K contract: score descending, then chunk id ascending.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.chunk < b.chunk);
}

// Per (row, query head): the best chunks in contract order, unused slots at the end, and the lse of all eligible ones.
struct CandidateLists {
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t topk = 0;
  std::vector<Candidate> candidates;  // [rows, heads, topk]
  std::vector<LogSum> sums;           // [rows, heads]

  CandidateLists() = default;
  CandidateLists(std::int64_t row_count, std::int64_t head_count, std::int64_t k)
      : rows(row_count),
        heads(head_count),
        topk(k),
        candidates(static_cast<std::size_t>(row_count * head_count * k)),
        sums(static_cast<std::size_t>(row_count * head_count)) {}

  std::span<Candidate> list(std::int64_t row, std::int64_t head) {
    return {candidates.data() + (row * heads + head) * topk, static_cast<std::size_t>(topk)};
  }
  std::span<const Candidate> list(std::int64_t row, std::int64_t head) const {
    return {candidates.data() + (row * heads + head) * topk, static_cast<std::size_t>(topk)};
  }
  LogSum& sum(std::int64_t row, std::int64_t head) { return sums[static_cast<std::size_t>(row * heads + head)]; }
  const LogSum& sum(std::int64_t row, std::int64_t head) const {
    return sums[static_cast<std::size_t>(row * heads + head)];
  }
};

// queries   [rows, H, d] the queries that score (retrieval queries for hils), any dtype
// tokens    [rows] their token ids, in any order (tiles are fastest when neighbours are consecutive)
// Scores are fp32: (scale * q) . key as one chain of fused multiply-adds over head_dim in ascending order starting from
// 0, plus bias; for quest over the products with the parts of q above 0, then those below. The scale multiplies q
// first. The chain makes a score independent of tile shape and instruction set. A NaN score never enters a list. Throws
// nothing; shapes are promises.
CandidateLists score_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                            const partition::SequenceGrid& grid, const RowsView& queries,
                            std::span<const TokenId> tokens, const PackedLandmarks& landmarks, int threads);
// eligible  [rows] the chunks that each row may choose, in place of those of its token.
CandidateLists score_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                            std::span<const Range<ChunkId>> eligible, const RowsView& queries,
                            const PackedLandmarks& landmarks, int threads);

}  // namespace ringmark::kernels
