// What a rank will hold, before anything of it is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/spill_arena.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/decode.h"
#include "runtime/kept_layer.h"
#include "runtime/merge_strategy.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

// Libraries, MPI's own buffers, stacks.
inline constexpr std::int64_t kProcessBytes = std::int64_t{96} << 20;
// Tiles, packed chunks and candidate buffers of one thread, whatever the sequence (kernels/cpu).
inline constexpr std::int64_t kWorkspaceBytes = std::int64_t{8} << 20;

struct MemoryItem {
  std::string name;
  std::int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::int64_t total() const;
  // With a policy: what of an item is over its memory lies in a file.
  void spill(std::string_view item, const std::optional<comm::SpillPolicy>& policy);
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

// What decoding needs to know beside the layer.
struct StepSize {
  int ranks = 1;
  std::int64_t rows = 0;  // of a step
};
// What a rank keeps of the layer and needs for a step. The rows themselves and what becomes of them are their owner's.
MemoryPlan plan_decode_memory(const KeptShape& shape, const StepSize& size, const DecodeOptions& options);

// One line an item, and the total against the limit.
std::string describe(const MemoryPlan& plan, std::int64_t limit);

// Throws Error(kEnvironment) with the number needed, the limit and the largest items when the plan is over `limit`.
void check_memory(const MemoryPlan& plan, std::int64_t limit, RankId rank);

}  // namespace ringmark::runtime
