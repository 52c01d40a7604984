// What a rank is expected to fetch. Window blocks follow from grid and layout; the chosen ones depend on the data, for
// which the planted layer's model stands (runtime/planted_layer.h): a query equals the one before with probability
// `agreement`, else it turns to one of `topics` directions, and the scores of chunks for a direction are in random
// order. Then a chunk is among the K best of the first e with probability K / e, and if it is not when a rank first
// asks for this direction after the chunk became eligible, it never will be: later choices are out of more chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::cluster {

struct QueryModel {
  double agreement = 0.98;
  std::int64_t topics = 8;      // 0: every turn is to a fresh direction
  std::int64_t needles = 64;    // rows at the end, and landmark slots at even depths, that each ask in a direction of
                                // their own; chunks of a needle are chosen by its question
  bool union_measured = false;  // agreement stands for a union ratio that somebody has measured
};

// Chunks that `tile` consecutive queries choose together over those that one chooses (docs/report.md, "union ratio"),
// where each chooses `share` of the chunks that it may: the fewer there are, the more often directions meet in one.
// Share 0 is of endlessly many, and that of a measured ratio, in which meetings are already.
double expected_union_ratio(const QueryModel& model, std::int64_t tile, double share = 0.0);
// The model of fresh directions that has this union ratio at 32 queries.
QueryModel model_of_union_ratio(double ratio);

struct ExpectedFetch {
  std::vector<double> window_blocks;   // by owner; (chunk, kv head) pairs, exact
  std::vector<double> chosen_blocks;   // by owner, each counted once
  std::vector<double> chosen_records;  // by owner: chunks that a wave chose, whose landmark `scores` fetches for each
  double window() const;
  double chosen() const;
  double records() const;
};

// In time that grows with the chunks of the sequence. The rank's own chunks are 0.
ExpectedFetch expected_fetch(const AttentionProblem& problem, const AttentionPolicy& policy,
                             const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                             const QueryModel& model);

}  // namespace ringmark::cluster
