#include "runtime/dense/memory_plan.h"

#include <algorithm>
#include <utility>

#include "kvstore/block_store.h"
#include "runtime/dense/head_shares.h"

namespace ringmark::runtime::dense {
namespace {

// The largest share of the heads in a group, in query heads and kv heads.
std::pair<std::int64_t, std::int64_t> largest_share(const AttentionProblem& problem, int group) {
  std::int64_t heads = 0, kv_heads = 0;
  for (int member = 0; member < group; ++member) {
    const HeadShare share = head_share(problem, member, group);
    heads = std::max(heads, share.heads.size());
    kv_heads = std::max(kv_heads, share.kv_heads.size());
  }
  return {heads, kv_heads};
}

}  // namespace

MemoryPlan plan_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                       const Options& options) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t head_rows = shard.rows * problem.heads;
  const std::int64_t queries = head_rows * problem.head_dim * element;
  const std::int64_t partials = head_rows * (problem.head_dim + 1) * kFloat;
  const std::int64_t blocks = kvstore::BlockStore::bytes_of(problem, shard.chunks);
  const int group = options.ulysses_ranks;
  const auto [heads, kv_heads] = largest_share(problem, group);
  MemoryPlan plan = {{
      {"queries", queries * (has_retrieval_queries ? 2 : 1)},
      {"keys and values as read", 2 * shard.rows * problem.kv_heads * problem.head_dim * element},
      {"blocks", blocks},
      {"output", partials},
      {"sums", head_rows * kFloat},
      {"process", kProcessBytes},
      {"kernel workspace", options.threads * kWorkspaceBytes},
      {"addresses", problem.chunks_at_most() * (problem.kv_heads * 8 + 40) + shard.rows * group * 8},
  }};
  // A group's rows of some heads, as queries, blocks and results; the messages that they come and go in.
  const std::int64_t share_rows = shard.rows * group * heads;
  const std::int64_t share_blocks = blocks * group * kv_heads / problem.kv_heads;
  if (group > 1) {
    plan.items.push_back({"queries of a share", share_rows * problem.head_dim * element + queries});
    plan.items.push_back({"blocks of a share", 2 * share_blocks});
    plan.items.push_back({"results of a share", share_rows * (problem.head_dim + 2) * kFloat + partials});
  }
  if (group == shard.ranks) return plan;
  switch (options.strategy) {
    case Strategy::kPassQ: plan.items.push_back({"visiting queries", 4 * queries + 3 * partials}); break;
    case Strategy::kAllGather: plan.items.push_back({"gathered keys", options.fetch_budget + blocks}); break;
    default: plan.items.push_back({"travelling keys", 3 * share_blocks});
  }
  return plan;
}

}  // namespace ringmark::runtime::dense
