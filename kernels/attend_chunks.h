// Attention over the chosen chunks, mixed with the window result by the hierarchical softmax.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "kernels/landmarks.h"
#include "kernels/positions/cache_positions.h"
#include "kernels/select_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {

// Where the landmark records that a kernel may read are; null for a chunk that is not present. Non-owning.
struct LandmarkRecords {
  LandmarkShape shape;
  std::vector<const float*> records;  // by chunk id

  const float* of(ChunkId chunk) const { return records[static_cast<std::size_t>(chunk.value())]; }
};

// Rows whose chosen chunks stand in a cache. Non-owning.
struct CachedRows {
  const CachePositions& positions;
  std::span<const TokenId> tokens;  // [rows] of all queries
};

// For every row i and head h, with the chosen chunks I of its chooser:
//     s_c  = the chunk's landmark score (recomputed here: hils and mean to the bits of score_chunks, oracle to fp32
//            rounding)
//     L    = logsumexp over I of s_c, and lse_window
//     out  = sum_c exp(s_c - L) * softmax inside chunk c of (scale q . k), times v   +   exp(lse_window - L) *
//     out_window lse  = L
//
// queries           [rows, H, d] attention queries; retrieval_queries the same shape (may be the same view)
// selection         chosen chunks of all rows; their blocks and records must be present for the range
// out, lse          in: window result of the rows; out: the mixed result. Rows without a chosen chunk stay as they are.
// cached            null: chunks stand where their keys were rotated. Otherwise each row meets its chunks, and scores
//                   their landmarks, where the cache has them (Scorer::kLandmark only).
// A tile of neighbouring rows loads each chunk of its union once; a row computes only the chunks it chose. Rows walk
// chunks in ascending order, so the result depends on neither tile, layout nor rank count.
void attend_chunks(const AttentionProblem& problem, const partition::SequenceGrid& grid, const RowsView& queries,
                   const RowsView& retrieval_queries, const Selection& selection, RowRange rows,
                   const BlockTable& blocks, const LandmarkRecords& landmarks, TensorView<float, 3> out,
                   TensorView<float, 2> lse, int threads, const CachedRows* cached = nullptr);

}  // namespace ringmark::kernels
