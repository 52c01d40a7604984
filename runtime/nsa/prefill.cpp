#include "runtime/nsa/prefill.h"

#include "core/error.h"
#include "kernels/attend_pooled.h"
#include "kernels/attend_selected.h"
#include "kernels/attend_window.h"
#include "runtime/row_needs.h"

namespace ringmark::runtime::nsa {
namespace {

constexpr std::int64_t kBranches = 3;
enum Branch : std::int64_t { kCompressed, kSelected, kWindow };

class Prefill {
 public:
  Prefill(const AttentionProblem& problem, const NsaPolicy& policy, std::span<const float> gates, PooledLayer& layer)
      : problem_(problem), gates_(gates), layer_(layer), selection_(layer.result().selection) {
    require(std::ssize(gates) == rows() * problem.heads * kBranches, "every row and head has three gates");
    selection_ = kernels::Selection(rows(), problem.kv_heads, policy.topk);
  }

  void run() {
    layer_.store();       // K, V of my chunks where peers may read them, and the means of all chunks
    attend_window();      // out = g2 window
    attend_compressed();  // + g0 compressed; which chunks matter, from its probabilities
    attend_selected();    // + g1 selected: only the chosen blocks move
  }

 private:
  void attend_window() {
    layer_.attend_in_waves("window", window_needs(problem_, layer_.grid(), layer_.tokens()), [&](RowRange rows) {
      kernels::attend_window(problem_, layer_.grid(), layer_.queries(), layer_.tokens(), rows, layer_.blocks(),
                             layer_.out(), layer_.lse(), layer_.threads());
      gated(kWindow).weigh(rows);
    });
  }

  void attend_compressed() {
    layer_.attend_locally("compress", [&](RowRange rows) {
      kernels::attend_pooled(problem_, layer_.grid(), layer_.pools(), layer_.queries(), layer_.tokens(), rows,
                             layer_.pooled(), gated(kCompressed), layer_.lse(), selection_, layer_.threads());
    });
  }

  void attend_selected() {
    layer_.attend_in_waves("attend", chosen_needs(problem_, selection_, 0), [&](RowRange rows) {
      kernels::attend_selected(problem_, layer_.grid(), layer_.queries(), layer_.tokens(), selection_, rows,
                               layer_.blocks(), gated(kSelected), layer_.lse(), layer_.threads());
    });
  }

  kernels::GatedRows gated(Branch branch) {
    return {layer_.out(), {gates_.data() + branch, {rows(), problem_.heads}, {problem_.heads * kBranches, kBranches}}};
  }
  std::int64_t rows() const { return layer_.queries().rows; }

  const AttentionProblem& problem_;
  std::span<const float> gates_;
  PooledLayer& layer_;
  kernels::Selection& selection_;  // of the result
};

}  // namespace

PrefillResult prefill(comm::Communicator& communicator, comm::BlockTransport& transport,
                      const AttentionProblem& problem, const NsaPolicy& policy, const partition::Layout& layout,
                      LayerShard& shard, std::span<const float> gates, const PooledOptions& options,
                      ProgressSink& progress) {
  const partition::SequenceGrid choosing(problem, policy.selection_policy());
  const std::vector<std::int64_t> work = partition::measure_balance(choosing, layout).pairs;
  PooledLayer layer(communicator, transport, problem, policy.window_policy(), problem.chunk_size, work, layout, shard,
                    options, progress);
  Prefill(problem, policy, gates, layer).run();
  return layer.finish();
}

MemoryPlan plan_memory(const AttentionProblem& problem, const NsaPolicy& policy, const ShardSize& shard,
                       bool has_retrieval_queries, const PooledOptions& options) {
  MemoryPlan plan =
      plan_pooled_memory(problem, shard, has_retrieval_queries, problem.tokens / problem.chunk_size, options);
  plan.items.push_back({"gates", shard.rows * problem.heads * kBranches * static_cast<std::int64_t>(sizeof(float))});
  plan.items.push_back({"selection", shard.rows * problem.kv_heads * policy.topk * 4});
  return plan;
}

}  // namespace ringmark::runtime::nsa
