// How much of the exact softmax mass a policy keeps: for sampled queries i and every head,
//     recall = sum over the keys it attends to of exp(z_ij) / sum over all keys <= i of exp(z_ij).
// 1 means that nothing was lost; what a query attends to are its window, its sinks and its chosen chunks.
#pragma once

#include <array>
#include <cstdint>

#include "comm/communicator.h"
#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "partition/layout.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

struct RecallOptions {
  double fraction = 0.01;  // of the rows, in (0, 1]
  std::uint64_t seed = 1;  // of the sample
  int threads = 1;
};

// Whether a row is in the sample: a function of seed and token alone, so no rank count changes it.
bool is_sampled(const RecallOptions& options, TokenId token);

// Over (row, head) pairs, of which every one has a key.
struct RecallShare {
  std::int64_t pairs = 0;
  double mean = 1.0;  // 1 without pairs
  double p5 = 1.0;    // the lowest value that at least 5 in 100 do not exceed; 1 without pairs
};

struct Recall {
  static constexpr std::size_t kDepths = 10;
  // Below it a policy is said to lose the keys: half of the mass is what a query then attends to on average, or, at the
  // 5th percentile, at best.
  static constexpr double kCollapse = 0.5;

  std::int64_t rows = 0;  // sampled, of all ranks
  RecallShare all;
  std::array<RecallShare, kDepths> depths;  // by the place of the query: which tenth of the sequence

  // The 5th percentile, or the mean of some depth, is below kCollapse.
  bool collapses() const;
};

// Bytes that measuring takes on a rank, besides what each thread works in (kWorkspaceBytes).
std::int64_t recall_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, int ranks, double fraction);

// Collective, with what prefill() hands to its `keep`; queries are those of the rows of this rank. Rows that the layout
// has left out are not sampled. Masses are sums that no order changes (kernels/log_sum.h), so the result is the same
// bits on every rank and on any number of them.
Recall measure_recall(comm::Communicator& communicator, const AttentionProblem& problem,
                      const partition::Layout& layout, const PrefillState& state, const RowsView& queries,
                      const RecallOptions& options);

}  // namespace ringmark::runtime
