#include "runtime/cuda/memory_plan.h"

#include <algorithm>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/row_geometry.h"
#include "kernels/cuda/score.h"
#include "kernels/score_chunks.h"
#include "kvstore/block_store.h"
#include "kvstore/landmark_table.h"
#include "runtime/cuda/prefill.h"

namespace ringmark::runtime::cuda {
namespace {

using kernels::cuda::ApproximateLists;
using kernels::cuda::LandmarkTiles;
using kernels::cuda::LayerShape;
using kernels::cuda::Path;

// The driver's context, code and stacks.
constexpr std::int64_t kContextBytes = std::int64_t{600} << 20;

// Bounds that move within a chunk: those of its window and of what is eligible, together, and both of the sinks.
constexpr std::int64_t kRunsOfAChunk = 4;
constexpr auto kRunBytes = static_cast<std::int64_t>(sizeof(kernels::cuda::RowRun));

std::int64_t exact_list_bytes(const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t pairs) {
  return pairs * (problem.group() * (policy.topk * static_cast<std::int64_t>(sizeof(kernels::Candidate)) +
                                     static_cast<std::int64_t>(sizeof(kernels::LogSum))));
}

}  // namespace

MemoryPlan plan_device_memory(const AttentionProblem& problem, const AttentionPolicy& policy, const ShardSize& shard,
                              bool has_retrieval_queries, Merge merge, Path path, std::int64_t fetch_budget) {
  const std::int64_t rows = shard.rows, chunks = problem.chunks_at_most(), heads = problem.heads;
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t query_bytes = rows * heads * problem.head_dim * element;
  const auto record_shape = kernels::LandmarkShape::of(problem, policy.scorer);
  MemoryPlan plan;
  plan.items = {
      {"queries", query_bytes * (has_retrieval_queries ? 2 : 1)},
      {"keys and values as read", 2 * rows * problem.kv_heads * problem.head_dim * element},
      {"blocks", kvstore::BlockStore::bytes_of(problem, shard.chunks)},
      {"output", rows * heads * (problem.head_dim + 1) * 4},
      {"geometry and addresses",
       rows * 40 + chunks * (16 + 8 * problem.kv_heads) + shard.chunks * (25 + kRunsOfAChunk * kRunBytes)},
      {"context", kContextBytes},
  };
  if (shard.ranks > 1) {
    const std::int64_t remote = kvstore::BlockStore::bytes_of(problem, chunks - shard.chunks);
    plan.items.push_back({"fetched blocks", std::min(fetch_budget, remote)});
  }
  if (!policy.selects()) return plan;
  // Under `scores` the records of all chosen chunks come, at worst every record.
  plan.items.push_back({"landmarks", kvstore::LandmarkTable::bytes_of(record_shape, chunks)});
  plan.items.push_back({"selection", rows * problem.kv_heads * policy.topk * 4});
  plan.items.push_back({"scores of the chosen", rows * heads * (policy.topk + 1) * 4});
  plan.items.push_back(
      {"exact lists", exact_list_bytes(problem, policy, exact_pairs_at_once(problem.group(), policy.topk))});
  if (path != Path::kSimt && merge == Merge::kLandmarks) {
    LayerShape shape;
    shape.landmark_heads = static_cast<std::int32_t>(record_shape.heads);
    shape.head_dim = static_cast<std::int32_t>(problem.head_dim);
    shape.chunk_count = static_cast<std::int32_t>(chunks);
    const std::int64_t capacity = ApproximateLists::capacity_of(static_cast<std::int32_t>(policy.topk));
    plan.items.push_back(
        {"landmark tiles", LandmarkTiles::term_bytes(shape) + record_shape.heads * (chunks + 128) * 4});
    plan.items.push_back({"score lists", std::min(rows, kScoredRows) * heads * (capacity * 8 + 12)});
    plan.items.push_back({"pairs to settle", rows * problem.kv_heads * 16});
  }
  if (path != Path::kSimt) {
    const std::int64_t tile_rows = 128 / problem.group();
    const std::int64_t tiles = (std::min(rows, kUnionRows) + tile_rows - 1) / tile_rows * problem.kv_heads;
    const std::int64_t items = tiles * std::min(chunks, tile_rows * policy.topk);
    plan.items.push_back({"unions", items * static_cast<std::int64_t>(sizeof(kernels::cuda::UnionItem)) + tiles * 16});
  }
  return plan;
}

}  // namespace ringmark::runtime::cuda
