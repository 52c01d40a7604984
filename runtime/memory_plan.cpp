#include "runtime/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/score_chunks.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"

namespace ringmark::runtime {
namespace {

// Libraries, MPI's own buffers, stacks.
constexpr std::int64_t kProcessBytes = std::int64_t{96} << 20;
// Tiles, packed chunks and candidate buffers of one thread, whatever the sequence (kernels/cpu).
constexpr std::int64_t kWorkspaceBytes = std::int64_t{8} << 20;
// Candidate lists of the rows that are scored at a time (selector.cpp), for both sides of an exchange.
constexpr std::int64_t kRowsInFlight = 8192;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

ShardSize shard_size(const partition::Layout& layout, RankId rank) {
  return {layout.ranks(), layout.token_count(rank), static_cast<std::int64_t>(layout.chunks_of(rank).size())};
}

ShardSize even_share(const partition::SequenceGrid& grid, int ranks) {
  return {ranks, (grid.tokens() + ranks - 1) / ranks, (grid.chunk_count() + ranks - 1) / ranks};
}

MemoryPlan plan_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, Merge merge, const PrefillOptions& options) {
  const std::int64_t rows = shard.rows;
  const std::int64_t chunks = problem.chunks_at_most();
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t query_bytes = rows * problem.heads * problem.head_dim * element;
  const std::int64_t kv_bytes = 2 * rows * problem.kv_heads * problem.head_dim * element;
  const std::int64_t known_chunks = merge == Merge::kScores ? shard.chunks : chunks;
  const auto shape = kernels::LandmarkShape::of(problem, policy.scorer);
  const std::int64_t lists = problem.heads * (policy.topk * static_cast<std::int64_t>(sizeof(kernels::Candidate)) +
                                              static_cast<std::int64_t>(sizeof(kernels::LogSum)));
  MemoryPlan plan;
  plan.items = {
      {"queries", query_bytes * (has_retrieval_queries ? 2 : 1)},
      {"keys and values as read", kv_bytes},
      {"blocks", kvstore::BlockStore::bytes_of(problem, shard.chunks)},
      {"output", rows * problem.heads * (problem.head_dim + 1) * static_cast<std::int64_t>(sizeof(float))},
      {"process", kProcessBytes},
      {"kernel workspace", options.threads * kWorkspaceBytes},
      {"addresses",
       chunks * problem.kv_heads * 8 + rows * 8 + chunks * 40 + (merge == Merge::kScores ? problem.tokens * 8 : 0)},
  };
  if (shard.ranks > 1) plan.items.push_back({"fetched blocks", options.fetch_budget});
  if (!policy.selects()) return plan;
  // Records, the list they are packed from, and the packed form.
  plan.items.push_back({"landmarks", 3 * kvstore::LandmarkTable::bytes_of(shape, known_chunks)});
  plan.items.push_back({"selection", rows * problem.kv_heads * policy.topk * 4});
  plan.items.push_back({"score lists", kRowsInFlight * lists * (merge == Merge::kScores ? shard.ranks : 1)});
  return plan;
}

MemoryPlan plan_reference_memory(const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const ShardSize& shard) {
  const std::int64_t query_elements = problem.tokens * problem.heads * problem.head_dim;
  const std::int64_t kv_elements = problem.tokens * problem.kv_heads * problem.head_dim;
  const std::int64_t chunks = problem.tokens / problem.chunk_size;
  const auto fp64 = static_cast<std::int64_t>(sizeof(double));
  return {{
      {"queries in fp64", 2 * query_elements * fp64},
      {"keys and values in fp64", 2 * kv_elements * fp64},
      {"gathering", 3 * query_elements * size_of(problem.dtype) + query_elements * 4},
      {"landmarks", policy.selects() ? chunks * problem.heads * (problem.head_dim + 8) * fp64 : 0},
      {"output", shard.rows * problem.heads * (problem.head_dim + 2) * (fp64 + 4)},
      {"process", kProcessBytes},
  }};
}

std::string describe(const MemoryPlan& plan, std::int64_t limit) {
  constexpr double kMib = 1024.0 * 1024.0;
  std::string text;
  for (const MemoryItem& item : plan.items) {
    text += fmt::format("{:<26}{:>12.1f} MiB\n", item.name, static_cast<double>(item.bytes) / kMib);
  }
  text += fmt::format("{:<26}{:>12.1f} MiB of {:.1f} MiB\n", "total", static_cast<double>(plan.total()) / kMib,
                      static_cast<double>(limit) / kMib);
  return text;
}

void check_memory(const MemoryPlan& plan, std::int64_t limit, RankId rank) {
  if (plan.total() <= limit) return;
  std::vector<MemoryItem> items = plan.items;
  std::sort(items.begin(), items.end(), [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
  fail_environment(fmt::format("rank {} needs {:.2f} GiB, its limit is {:.2f} GiB: {} {:.2f} GiB, {} {:.2f} GiB, ...",
                               rank.value(), gib(plan.total()), gib(limit), items[0].name, gib(items[0].bytes),
                               items[1].name, gib(items[1].bytes)));
}

}  // namespace ringmark::runtime
