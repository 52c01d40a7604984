// What a command that computes one layer does besides computing it, whatever its policy: the input and the outputs are
// checked, the memory is planned, the rows come in and the results go out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cluster/prefill/layer_source.h"
#include "cluster/prefill/prefill_options.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/layer_output.h"
#include "runtime/layer_shard.h"
#include "runtime/memory_plan.h"
#include "runtime/prefill.h"

namespace ringmark::cluster {

class LayerRun {
 public:
  LayerRun(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry);

  // Collective, in this order. Everything that can be refused is refused in the first two, before anything large is
  // allocated.
  void open();
  // `output` is where the result goes and `policy` what it says of itself; `plan_memory` is asked for an even share,
  // before the layout's own tables, and for the shard.
  void plan(const AttentionPolicy& grid_policy, const runtime::OutputFile& output, const AttentionPolicy& policy,
            const std::function<runtime::MemoryPlan(const runtime::ShardSize&)>& plan_memory);
  runtime::LayerShard load();
  void write(const runtime::OutputFile& output, const AttentionPolicy& policy, const runtime::PrefillResult& result);

  const PrefillOptions& options() const { return options_; }
  comm::Communicator& ranks() const { return ranks_; }
  RankId rank() const { return rank_; }
  int threads() const { return threads_; }
  bool by_reference() const { return options_.backend == kernels::Backend::kReference; }
  const LayerSource& source() const { return *source_; }
  const AttentionProblem& problem() const { return source_->problem(); }
  const partition::SequenceGrid& grid() const { return *grid_; }
  const partition::Layout& layout() const { return *layout_; }
  // Bytes of received blocks held at once: the same on every rank.
  std::int64_t fetch_budget() const { return fetch_budget_; }
  Telemetry& telemetry() const { return telemetry_; }
  runtime::Trace& trace() { return telemetry_.trace(); }
  const runtime::StageClock& clock() const { return clock_; }

 private:
  const PrefillOptions& options_;
  comm::Communicator& ranks_;
  Telemetry& telemetry_;
  RankId rank_;
  int threads_;
  std::int64_t limit_ = 0;  // bytes this rank may hold
  std::int64_t fetch_budget_ = std::int64_t{64} << 20;
  std::unique_ptr<LayerSource> source_;
  std::unique_ptr<partition::SequenceGrid> grid_;
  std::unique_ptr<partition::Layout> layout_;
  runtime::StageClock clock_;
};

}  // namespace ringmark::cluster
