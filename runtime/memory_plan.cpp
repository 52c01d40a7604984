#include "runtime/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/score_chunks.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"

namespace ringmark::runtime {
namespace {

// Candidate lists of the rows that are scored at a time (selector.cpp), for both sides of an exchange.
constexpr std::int64_t kRowsInFlight = 8192;

// Of the candidates of one row, and their sums.
std::int64_t list_bytes(const AttentionProblem& problem, const AttentionPolicy& policy) {
  return problem.heads * (policy.topk * static_cast<std::int64_t>(sizeof(kernels::Candidate)) +
                          static_cast<std::int64_t>(sizeof(kernels::LogSum)));
}

// Out and lse of one row.
std::int64_t result_bytes(const AttentionProblem& problem) {
  return problem.heads * (problem.head_dim + 1) * static_cast<std::int64_t>(sizeof(float));
}

// Chunks rotate: nobody has more than one above the mean.
std::int64_t own_chunks(std::int64_t chunks, int ranks) { return (chunks + ranks - 1) / ranks; }

// Of kernels::PackedLandmarks, whose panels are full.
std::int64_t packed_bytes(const kernels::LandmarkShape& shape, std::int64_t chunks) {
  constexpr std::int64_t kPanel = kernels::PackedLandmarks::kPanel;
  return kvstore::LandmarkTable::bytes_of(shape, (chunks + kPanel - 1) / kPanel * kPanel) + chunks * 8;
}

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

void MemoryPlan::spill(std::string_view item, const std::optional<comm::SpillPolicy>& policy) {
  if (!policy) return;
  for (MemoryItem& of : items) {
    if (of.name == item) of.bytes = std::min(of.bytes, policy->memory_bytes);
  }
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
  if (policy.landmark_positions == LandmarkPositions::kStingy) {
    const std::int64_t turned =
        kRowsInFlight * problem.heads * problem.head_dim * static_cast<std::int64_t>(sizeof(float));
    plan.items.push_back({"turned landmarks", 2 * kvstore::LandmarkTable::bytes_of(shape, known_chunks)});
    plan.items.push_back({"turned queries", turned + kRowsInFlight * list_bytes(problem, policy)});
  }
  plan.items.push_back({"selection", rows * policy.choosers(problem) * policy.topk * 4});
  plan.items.push_back(
      {"score lists", kRowsInFlight * list_bytes(problem, policy) * (merge == Merge::kScores ? shard.ranks : 1)});
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

MemoryPlan plan_decode_memory(const KeptShape& shape, const StepSize& size, const DecodeOptions& options) {
  const AttentionProblem& problem = shape.problem;
  const std::int64_t chunks = problem.chunks_at_most();
  const std::int64_t tile = std::min(size.rows, options.tile_rows);
  const std::int64_t sequences = std::max<std::int64_t>(1, std::ssize(problem.cu_seqlens) - 1);
  // Of every sequence one, and those that the last rows have closed.
  const std::int64_t raw_chunks = std::min(chunks, sequences + tile / problem.chunk_size + 1);
  MemoryPlan plan;
  plan.items = {
      {"kept blocks", KeptLayer::exposed_bytes(shape, size.ranks)},
      {"growing chunks", kvstore::BlockStore::bytes_of(problem, raw_chunks)},
      {"block cache", options.cache_bytes},
      {"rows of a tile", 2 * tile * result_bytes(problem)},
      {"process", kProcessBytes},
      {"kernel workspace", options.threads * kWorkspaceBytes},
      // Three tables of blocks and the checksums; what is known of a chunk.
      {"addresses", chunks * (problem.kv_heads * (3 * 8 + 4) + 48)},
  };
  if (!shape.policy.selects()) return plan;
  const auto landmark = kernels::LandmarkShape::of(problem, shape.policy.scorer);
  plan.items.push_back({"packed landmarks", packed_bytes(landmark, own_chunks(chunks, size.ranks))});
  plan.items.push_back({"selection", tile * problem.kv_heads * shape.policy.topk * 4});
  // Own lists, those of all ranks, and the bytes in which they travel.
  plan.items.push_back({"score lists", tile * list_bytes(problem, shape.policy) * 2 * (size.ranks + 1)});
  return plan;
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
