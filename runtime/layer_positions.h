// Positions of a layer that comes without them: the ids of its rows, and the rotation of q, k and landmark_q by them.
// Landmark queries are rows of landmark_q like any other, at the position of their slot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/positions/encoding.h"
#include "partition/sequence_grid.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// 0, 1, 2, ... within each document, a landmark slot at the position of the token behind it
// (kernels/positions/slot_position.h). The tokens may be any of the layer, in any order.
std::vector<std::int64_t> positions_in_documents(const AttentionProblem& problem, std::span<const TokenId> tokens);

// What of an encoding depends on the layer, before anything is allocated: the head dimension and, where positions are
// those within documents, the longest document. Throws Error(kBadInput).
void check_encoding(const kernels::PositionEncoding& encoding, const AttentionProblem& problem, bool own_positions);

// tokens, positions: [rows of the shard]. Throws Error(kBadInput) naming tensor and token of a row that was finite and
// leaves the range of the layer's dtype.
void rotate_rows(const kernels::PositionEncoding& encoding, std::span<const TokenId> tokens,
                 std::span<const std::int64_t> positions, LayerShard& shard, int threads);

// The sink queries of StreamingLLM (arXiv 2309.17453): queries that attend to sinks below their window stand at their
// place in a cache of the sinks and the window, as if nothing lay between the two. Under an exact window of W tokens
// that is position min(o, sinks + W - 1) instead of o. To be called before rotate_rows; positions are those within
// documents. Throws Error(kBadInput) as rotate_rows does.
void make_sink_queries(const kernels::PositionEncoding& encoding, const AttentionProblem& problem,
                       const partition::SequenceGrid& grid, std::span<const TokenId> tokens, LayerShard& shard,
                       int threads);

}  // namespace ringmark::runtime
