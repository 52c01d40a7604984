// Seconds of each stage of a prefill on one rank, from the work it has and what its machine can do. Pure arithmetic:
// `plan` prints it and `simulate` charges it as compute.
#pragma once

#include <cstdint>

#include "cluster/planning/expected_fetch.h"
#include "cluster/planning/machine_profile.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"
#include "runtime/merge_strategy.h"

namespace ringmark::cluster {

// What one rank computes, counted from grid and layout. A product and its sum are two flops.
struct RankWork {
  double rows = 0;
  double chunk_bytes = 0;   // of own K and V blocks: store, and landmarks
  double window_flops = 0;  // 4 d a (row, query head, key of window or sinks)
  double table_bytes = 0;   // of landmark records that are scored here: all, or the own under `scores`
  double score_flops = 0;   // 2 d a (row, query head, eligible landmark)
  double needs = 0;         // (row, kv head, chosen chunk) of other ranks' chunks, as if choices were spread evenly
  double attend_flops = 0;  // 4 d a (row, query head, key of a chosen chunk)
  double union_flops = 0;   // the same of every chunk that a row of its tile chose, as a GPU loads and multiplies them
};

// In time that grows with the chunks of the sequence, not with its rows, where windows begin at chunks. Under
// Merge::kScores the rank scores its own landmarks for the rows of all ranks. A chosen chunk counts with all the keys
// of a full one: where sinks cut into a chunk, it has fewer. Unions depend on the data, for which the model stands.
RankWork count_work(const AttentionProblem& problem, const AttentionPolicy& policy, const partition::SequenceGrid& grid,
                    const partition::Layout& layout, RankId rank, const QueryModel& model,
                    runtime::Merge merge = runtime::Merge::kLandmarks);

// Of exact causal attention to everything: 4 d a (row, query head, key), all ranks together.
double dense_flops(const AttentionProblem& problem, const partition::SequenceGrid& grid);

struct RankSeconds {
  double store = 0, landmarks = 0, window = 0, pack = 0, score = 0, plan = 0, attend = 0, rest = 0;
  double total() const { return store + landmarks + window + pack + score + plan + attend + rest; }
};

// `slowdown` as MachineProfile::slowdown says. A rank without rows takes no time.
RankSeconds predict(const RankWork& work, const ComputeRates& rates, double slowdown = 1.0);

}  // namespace ringmark::cluster
