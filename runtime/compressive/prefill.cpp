#include "runtime/compressive/prefill.h"

#include "kernels/absorb_sinks.h"
#include "kernels/attend_compressive.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime::compressive {

PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const CompressivePolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, const PooledOptions& options, ProgressSink& progress) {
  const partition::SequenceGrid exact(problem, policy.exact_policy());
  const std::vector<std::int64_t> work = partition::measure_balance(exact, layout).pairs;
  PooledLayer layer(communicator, transport, problem, policy.exact_policy(), policy.rate, work, layout, shard, options,
                    progress);
  layer.store();  // K, V of my chunks where peers may read them, and the means of all groups
  layer.attend_in_waves("attend", window_needs(problem, layer.grid(), layer.tokens()), [&](RowRange rows) {
    kernels::attend_compressive(problem, policy, layer.grid(), layer.pools(), layer.queries(), layer.tokens(), rows,
                                layer.blocks(), layer.pooled(), layer.out(), layer.lse(), layer.threads());
  });
  kernels::absorb_sinks(problem.sink_logits, layer.out(), layer.lse(), layer.threads());
  return layer.finish();
}

MemoryPlan plan_memory(const AttentionProblem& problem, const CompressivePolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, const PooledOptions& options) {
  return plan_pooled_memory(problem, shard, has_retrieval_queries, problem.tokens / policy.rate, options);
}

}  // namespace ringmark::runtime::compressive
