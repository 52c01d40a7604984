#include "cluster/prefill/layer_run.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "cluster/job/host.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {

LayerRun::LayerRun(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
    : options_(options),
      ranks_(ranks),
      telemetry_(telemetry),
      rank_(ranks.rank()),
      threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {
  clock_.record_in(&trace());
}

void LayerRun::open() {
  runtime::agree(ranks_, "read the input", [&] { source_ = std::make_unique<LayerSource>(options_); });
  limit_ = options_.memory_bytes().value_or(available_memory() / ranks_.host_ranks());
  // What ranks gather together is cut alike on every one.
  std::array<std::int64_t, 1> least = {-(options_.fetch_mib ? *options_.fetch_mib << 20 : fetch_budget_)};
  ranks_.all_reduce_max("agree on memory", least);
  fetch_budget_ = -least[0];
}

void LayerRun::plan(const AttentionPolicy& grid_policy, const runtime::OutputFile& output,
                    const AttentionPolicy& policy,
                    const std::function<runtime::MemoryPlan(const runtime::ShardSize&)>& plan_memory) {
  grid_ = std::make_unique<partition::SequenceGrid>(problem(), grid_policy);
  runtime::agree(ranks_, "plan memory", [&] {
    runtime::check_memory(plan_memory(runtime::even_share(*grid_, ranks_.size())), limit_, rank_);
    if (!output.path.empty() && rank_ == RankId(0)) runtime::check_output(output, problem(), policy);
  });
  layout_ = std::make_unique<partition::Layout>(partition::make_layout(*grid_, ranks_.size(), options_.balance));
  const runtime::MemoryPlan of_shard = plan_memory(runtime::shard_size(*layout_, rank_));
  if (options_.memory_plan && rank_ == RankId(0)) {
    fmt::print("memory of rank 0\n{}", runtime::describe(of_shard, limit_));
    std::fflush(stdout);
  }
  runtime::agree(ranks_, "plan memory", [&] { runtime::check_memory(of_shard, limit_, rank_); });
}

runtime::LayerShard LayerRun::load() {
  const auto span = clock_.time("load");
  std::optional<runtime::LayerShard> shard;
  runtime::agree(ranks_, "load the layer", [&] { shard = source_->shard(*layout_, rank_, threads_); });
  return std::move(*shard);
}

void LayerRun::write(const runtime::OutputFile& output, const AttentionPolicy& policy,
                     const runtime::PrefillResult& result) {
  if (output.path.empty()) return;
  const auto span = clock_.time("write");
  runtime::write_output(ranks_, output, problem(), policy, *layout_, result);
}

}  // namespace ringmark::cluster
