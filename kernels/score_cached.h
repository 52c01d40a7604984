// Scoring with positions in a cache: far landmarks count at one position, near ones at their own.
#pragma once

#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/landmarks.h"
#include "kernels/positions/cache_positions.h"
#include "kernels/score_chunks.h"

namespace ringmark::kernels {

// As score_chunks, of queries [rows, H, d] that were rotated at their slots.
// near  landmarks as they are; far  the same chunks, turned back by CachePositions::turn_back_landmark
// A row's near chunks are scored against `near`, its far ones against `far`, with its query turned to meet them.
CandidateLists score_cached_chunks(const AttentionProblem& problem, const AttentionPolicy& policy,
                                   const CachePositions& positions, const RowsView& queries,
                                   std::span<const TokenId> tokens, const PackedLandmarks& near,
                                   const PackedLandmarks& far, int threads);

}  // namespace ringmark::kernels
