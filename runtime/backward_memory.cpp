#include "runtime/backward_memory.h"

#include <algorithm>

#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"

namespace ringmark::runtime {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

// Of one row, with its lse.
std::int64_t forward_bytes(const AttentionProblem& problem) { return problem.heads * (problem.head_dim + 1) * kFloat; }

}  // namespace

MemoryPlan plan_backward_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                                bool has_retrieval_queries, const BackwardOptions& options) {
  const std::int64_t chunks = problem.chunks_at_most();
  const std::int64_t query_floats = shard.rows * problem.heads * problem.head_dim;
  const std::int64_t key_floats = shard.rows * problem.kv_heads * problem.head_dim;
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t queries = has_retrieval_queries ? 2 : 1;
  // A stretch is a chunk at least, and no longer than the sequence.
  const std::int64_t stretch = std::min(chunks, stretch_chunks(problem, policy, shard.ranks, options.gradient_budget));
  MemoryPlan plan;
  plan.items = {
      {"queries", queries * query_floats * element},
      {"keys and values as read", 2 * key_floats * element},
      {"blocks", kvstore::BlockStore::bytes_of(problem, shard.chunks)},
      {"results of the forward", shard.rows * forward_bytes(problem)},
      {"gradient of the output", query_floats * kFloat + shard.rows * problem.heads * kFloat},
      {"gradients", (queries * query_floats + 2 * key_floats) * kFloat},
      {"gradients on their way", stretch * gradient_bytes(problem, policy) * (shard.ranks + 1)},
      {"process", kProcessBytes},
      {"kernel workspace", options.threads * kWorkspaceBytes},
      {"addresses", chunks * (problem.kv_heads * 40 + 40) + shard.rows * 8},
  };
  if (shard.ranks > 1) plan.items.push_back({"fetched blocks", options.fetch_budget});
  if (!policy.selects()) return plan;
  const auto landmark = kernels::LandmarkShape::of(problem, policy.scorer);
  plan.items.push_back({"landmarks", 2 * kvstore::LandmarkTable::bytes_of(landmark, shard.chunks)});
  plan.items.push_back({"landmark queries", shard.chunks * problem.heads * problem.head_dim * element});
  // The choice, and which rows chose the chunks at hand.
  plan.items.push_back({"selection", shard.rows * problem.kv_heads * policy.topk * (4 + 8)});
  return plan;
}

MemoryPlan plan_reference_backward_memory(const AttentionProblem& problem, const AttentionPolicy& policy,
                                          const ShardSize& shard) {
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  const std::int64_t query_floats = problem.tokens * problem.heads * problem.head_dim;
  const std::int64_t key_floats = problem.tokens * problem.kv_heads * problem.head_dim;
  MemoryPlan plan = plan_reference_memory(problem, policy, shard);
  plan.items.push_back({"gradient of the output", query_floats * (kDouble + 2 * kFloat)});
  plan.items.push_back({"gradients in fp64", 2 * (query_floats + key_floats) * kDouble});
  plan.items.push_back(
      {"gradients", shard.rows * (2 * problem.heads + 2 * problem.kv_heads) * problem.head_dim * kFloat});
  return plan;
}

}  // namespace ringmark::runtime
