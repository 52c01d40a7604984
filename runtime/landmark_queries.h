// Where the landmark query q'_c of a chunk comes from, and those that are no rows of the sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/positions/encoding.h"
#include "kvstore/safetensors_file.h"
#include "partition/layout.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

enum class LandmarkQuery {
  kSlot,    // the retrieval query at the chunk's last slot
  kChunk,   // tensor chunk_landmark_q [full chunks in order of chunk id, H, d]: landmarks that stand outside the
            // sequence
  kShared,  // tensor shared_landmark_q [H, d]: one learned query a layer
};

std::string_view name_of(LandmarkQuery from);

// Of a rank with so many chunks; 0 for kSlot, whose queries are rows.
std::int64_t landmark_query_bytes(const AttentionProblem& problem, LandmarkQuery from, std::int64_t chunks);

// Throws Error(kBadInput) naming the tensor that `from` needs when the file lacks it or its shape or dtype do not fit.
void check_landmark_queries(const kvstore::SafetensorsFile& file, const AttentionProblem& problem, LandmarkQuery from);

// Fills the landmark queries of the shard of a rank, zeros for chunks that are not full. Throws Error(kBadInput) naming
// the tensor and the row of a value that is NaN or infinite. Nothing for kSlot.
void read_landmark_queries(const kvstore::SafetensorsFile& file, const AttentionProblem& problem, LandmarkQuery from,
                           const partition::SequenceGrid& grid, std::span<const ChunkId> chunks, LayerShard& shard);

// Rotates them by the positions of their chunks' last slots, as retrieval queries there would be. positions: of the
// shard's rows. Every chunk has its rows in the layout. Throws as rotate_rows does.
void rotate_landmark_queries(const kernels::PositionEncoding& encoding, const partition::SequenceGrid& grid,
                             const partition::Layout& layout, RankId rank, std::span<const std::int64_t> positions,
                             LayerShard& shard, int threads);

}  // namespace ringmark::runtime
