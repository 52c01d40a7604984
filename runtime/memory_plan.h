// What a rank will hold, before anything of it is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/merge_strategy.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

struct MemoryItem {
  std::string name;
  std::int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::int64_t total() const;
};

// What a plan needs to know of a layout.
struct ShardSize {
  int ranks = 1;
  std::int64_t rows = 0;    // of the rank
  std::int64_t chunks = 0;  // of the rank
};
ShardSize shard_size(const partition::Layout& layout, RankId rank);
// An even share: known before a layout, whose own tables grow with the sequence, exists.
ShardSize even_share(const partition::SequenceGrid& grid, int ranks);

// `merge` is the strategy that will be used.
MemoryPlan plan_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, Merge merge, const PrefillOptions& options);

// The fp64 reference holds the whole layer on every rank.
MemoryPlan plan_reference_memory(const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const ShardSize& shard);

// One line an item, and the total against the limit.
std::string describe(const MemoryPlan& plan, std::int64_t limit);

// Throws Error(kEnvironment) with the number needed, the limit and the largest items when the plan is over `limit`.
void check_memory(const MemoryPlan& plan, std::int64_t limit, RankId rank);

}  // namespace ringmark::runtime
