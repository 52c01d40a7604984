#include "runtime/pooled_layer.h"

#include <algorithm>
#include <limits>

#include "kvstore/block_store.h"
#include "runtime/block_exposure.h"
#include "runtime/block_waves.h"

namespace ringmark::runtime {
namespace {

// The transport's number of the block arenas: nothing else is exposed.
constexpr int kBlockRegion = 0;

}  // namespace

PooledLayer::PooledLayer(comm::Communicator& communicator, comm::BlockTransport& transport,
                         const AttentionProblem& problem, const AttentionPolicy& policy, std::int64_t rate,
                         std::span<const std::int64_t> work, const partition::Layout& layout, LayerShard& shard,
                         const PooledOptions& options, ProgressSink& progress)
    : communicator_(communicator),
      transport_(transport),
      problem_(problem),
      layout_(layout),
      rank_(communicator.rank()),
      shard_(shard),
      options_(options),
      progress_(progress),
      grid_(problem, policy),
      pools_(problem, grid_, rate),
      tokens_(layout.tokens_of(rank_)),
      table_(kernels::BlockShape::of(problem), grid_.chunk_count(), problem.kv_heads),
      meeting_(communicator, work) {
  // A row that no kernel wrote must not look like a result.
  constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  result_.out.resize(static_cast<std::size_t>(shard.rows() * problem.heads * problem.head_dim), kUnwritten);
  result_.lse.resize(static_cast<std::size_t>(shard.rows() * problem.heads), kUnwritten);
  result_.clock.record_in(options.trace);
}

void PooledLayer::store() {
  const auto span = result_.clock.time("pool");
  expose_blocks(transport_, problem_, grid_, layout_, rank_, shard_, table_);
  const std::int64_t own_rows = kvstore::pooled_rows_of(pools_, layout_, rank_);
  std::vector<float> own(static_cast<std::size_t>(own_rows * kernels::pooled_row_floats(problem_)));
  kernels::pool_chunks(problem_, grid_, pools_, layout_.chunks_of(rank_), table_, own, options_.threads);
  pooled_ = std::make_unique<kvstore::PooledTable>(communicator_, problem_, pools_, layout_, own);
  result_.bytes_merged = kvstore::PooledTable::bytes_of(problem_, pools_.rows() - own_rows);
  transport_.publish();
}

void PooledLayer::attend_in_waves(std::string_view stage, const RowNeeds& needs,
                                  const std::function<void(RowRange rows)>& attend) {
  FetchPlan plan;
  {
    const auto span = result_.clock.time("plan");
    plan = plan_fetch(problem_, layout_, rank_, {0, shard_.rows()}, needs, options_.fetch_budget);
    result_.bytes_fetched += plan.blocks * table_.shape().bytes();
  }
  const std::function<bool()> never_stops = [] { return false; };
  std::int64_t done = 0;
  BlockWaves{transport_, kBlockRegion, table_, result_.clock, progress_, options_.tile_rows, never_stops}.run(
      stage, plan, done, {.attend = attend});
}

void PooledLayer::attend_locally(std::string_view stage, const std::function<void(RowRange rows)>& attend) {
  const auto span = result_.clock.time(stage);
  progress_.begin(stage, shard_.rows());
  for (std::int64_t row = 0; row < shard_.rows(); row += options_.tile_rows) {
    const RowRange tile{row, std::min(shard_.rows(), row + options_.tile_rows)};
    attend(tile);
    progress_.advance(tile.end);
  }
  progress_.end();
}

PrefillResult PooledLayer::finish() {
  meeting_.meet("end of the layer");
  transport_.retire();
  return std::move(result_);
}

MemoryPlan plan_pooled_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                              std::int64_t pooled_rows, const PooledOptions& options) {
  const std::int64_t element = size_of(problem.dtype);
  const std::int64_t chunks = problem.chunks_at_most();
  MemoryPlan plan;
  plan.items = {
      {"queries", shard.rows * problem.heads * problem.head_dim * element * (has_retrieval_queries ? 2 : 1)},
      {"keys and values as read", 2 * shard.rows * problem.kv_heads * problem.head_dim * element},
      {"blocks", kvstore::BlockStore::bytes_of(problem, shard.chunks)},
      {"output", shard.rows * problem.heads * (problem.head_dim + 1) * static_cast<std::int64_t>(sizeof(float))},
      // As they come, and as attention reads them.
      {"pooled keys", 2 * kvstore::PooledTable::bytes_of(problem, pooled_rows)},
      {"process", kProcessBytes},
      {"kernel workspace", options.threads * kWorkspaceBytes},
      {"addresses", chunks * problem.kv_heads * 8 + shard.rows * 8 + chunks * 48},
  };
  if (shard.ranks > 1) plan.items.push_back({"fetched blocks", options.fetch_budget});
  return plan;
}

}  // namespace ringmark::runtime
