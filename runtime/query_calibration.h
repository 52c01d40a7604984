// Retrieval queries made of hidden states: a layer file with the tensors `hidden` [N, D], `calibration.q` [H d, D],
// `calibration.up` [H d, r], `calibration.down` [r, D] and `calibration.norm` [d] in the place of landmark_q. All have
// the dtype of q. Formula: kernels/calibrate_queries.h.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/problem.h"
#include "kvstore/safetensors_file.h"
#include "runtime/layer_shard.h"

namespace ringmark::runtime {

// Throws Error(kBadInput) naming a tensor that is missing or whose shape or dtype does not fit, and landmark_q where
// the file has it: what it holds would not be used.
void check_calibration(const kvstore::SafetensorsFile& file, const AttentionProblem& problem);

// Bytes beside the retrieval queries themselves.
std::int64_t calibration_bytes(const kvstore::SafetensorsFile& file, const AttentionProblem& problem, int threads);

// Fills the retrieval queries of the shard, whose rows are these tokens, some at a time. Throws Error(kBadInput) naming
// tensor and row of a value that is NaN or infinite.
void calibrate_retrieval_queries(const kvstore::SafetensorsFile& file, const AttentionProblem& problem,
                                 std::span<const RowRange> tokens, LayerShard& shard, int threads);

}  // namespace ringmark::runtime
