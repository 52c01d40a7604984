// What the engines that attend to pooled keys share: the blocks of this rank in memory that peers read, the pooled keys
// and values of all ranks, and stages whose blocks arrive in waves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/block_transport.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "kvstore/pooled_table.h"
#include "partition/layout.h"
#include "partition/pool_grid.h"
#include "partition/sequence_grid.h"
#include "runtime/fetch_plan.h"
#include "runtime/layer_shard.h"
#include "runtime/meeting.h"
#include "runtime/memory_plan.h"
#include "runtime/prefill.h"
#include "runtime/progress_sink.h"

namespace ringmark::runtime {

struct PooledOptions {
  std::int64_t fetch_budget = std::int64_t{64} << 20;  // bytes of received blocks held at once
  std::int64_t tile_rows = 4096;                       // rows between two reports of progress, at most
  int threads = 1;
  Trace* trace = nullptr;  // where spans of the stages go; may be null
};

class PooledLayer {
 public:
  // `policy` is that of the grid, `rate` that of the pools, `work` what each rank has to do, in any unit; the rest as
  // in prefill(). Results are unwritten, NaN.
  PooledLayer(comm::Communicator& communicator, comm::BlockTransport& transport, const AttentionProblem& problem,
              const AttentionPolicy& policy, std::int64_t rate, std::span<const std::int64_t> work,
              const partition::Layout& layout, LayerShard& shard, const PooledOptions& options, ProgressSink& progress);

  // Collective: K and V of this rank go into blocks that peers may read, and out of the shard; the pooled rows of all
  // ranks come.
  void store();
  // Attends to rows tile by tile, ascending, once the blocks that they need are in the table.
  void attend_in_waves(std::string_view stage, const RowNeeds& needs, const std::function<void(RowRange rows)>& attend);
  // The same for a stage that needs no blocks.
  void attend_locally(std::string_view stage, const std::function<void(RowRange rows)>& attend);
  // Collective: nobody reads any more.
  PrefillResult finish();

  const partition::SequenceGrid& grid() const { return grid_; }
  const partition::PoolGrid& pools() const { return pools_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  RowsView queries() const { return shard_.queries(); }
  const kernels::BlockTable& blocks() const { return table_; }
  kernels::PooledKeys pooled() const { return pooled_->keys(); }
  int threads() const { return options_.threads; }
  PrefillResult& result() { return result_; }
  TensorView<float, 3> out() { return {result_.out.data(), {shard_.rows(), problem_.heads, problem_.head_dim}}; }
  TensorView<float, 2> lse() { return {result_.lse.data(), {shard_.rows(), problem_.heads}}; }

 private:
  comm::Communicator& communicator_;
  comm::BlockTransport& transport_;
  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  RankId rank_;
  LayerShard& shard_;
  const PooledOptions& options_;
  ProgressSink& progress_;
  partition::SequenceGrid grid_;
  partition::PoolGrid pools_;
  std::vector<TokenId> tokens_;
  kernels::BlockTable table_;
  std::unique_ptr<kvstore::PooledTable> pooled_;
  Meeting meeting_;
  PrefillResult result_;
};

// What a rank with so many pooled rows in all holds, whatever the policy does with them.
MemoryPlan plan_pooled_memory(const AttentionProblem& problem, const ShardSize& shard, bool has_retrieval_queries,
                              std::int64_t pooled_rows, const PooledOptions& options);

}  // namespace ringmark::runtime
