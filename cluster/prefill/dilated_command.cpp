#include "cluster/prefill/dilated_command.h"

#include <fmt/format.h>

#include <utility>

#include "cluster/job/progress.h"
#include "cluster/prefill/block_report.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/pooled_report.h"
#include "comm/block_transport.h"
#include "kernels/reference/dilated.h"
#include "runtime/dense/prefill.h"
#include "runtime/dilated/prefill.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace dilated = runtime::dilated;

class DilatedCommand {
 public:
  DilatedCommand(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : run_(options, ranks, telemetry) {}

  void run() {
    run_.open();
    engine_.dilations = run_.options().dilated->dilations;
    engine_.fetch_budget = run_.fetch_budget();
    engine_.threads = run_.threads();
    engine_.trace = &run_.trace();
    run_.plan(policy(), output(), policy(), [this](const runtime::ShardSize& shard) { return plan_memory(shard); });
    runtime::LayerShard shard = run_.load();
    dilated::Result result = compute(shard);
    runtime::PrefillResult rows;
    rows.out = std::move(result.out);
    rows.lse = std::move(result.lse);
    run_.write(output(), policy(), rows);
    report(rows.out, result);
  }

 private:
  const AttentionProblem& problem() const { return run_.problem(); }
  AttentionPolicy policy() const { return runtime::dense::whole_window(problem()); }
  runtime::OutputFile output() const { return {run_.options().output, false, {{"policy", "dilated"}}}; }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) const {
    if (run_.by_reference()) return runtime::plan_reference_memory(problem(), policy(), shard);
    runtime::MemoryPlan plan = dilated::plan_memory(problem(), shard, run_.source().has_retrieval_queries(), engine_);
    plan.spill("blocks", run_.options().spill());
    return plan;
  }

  dilated::Result compute(runtime::LayerShard& shard) {
    if (run_.by_reference()) return compute_by_reference(shard);
    transport_ = transport_of_blocks(run_);
    Progress shown(run_.ranks().rank(), run_.options().quiet);
    ObservedProgress progress(run_.telemetry().state(), shown);
    return dilated::prefill(run_.ranks(), *transport_.transport, problem(), run_.grid(), run_.layout(), shard, engine_,
                            progress);
  }

  dilated::Result compute_by_reference(const runtime::LayerShard& shard) {
    transport_ = {nullptr, "none: the reference gathers the whole layer"};
    runtime::PrefillResult rows =
        runtime::reference_prefill(run_.ranks(), problem(), policy(), run_.layout(), shard,
                                   [this](const kernels::reference::Layer& layer, std::span<const TokenId> tokens) {
                                     return kernels::reference::attend_dilated(layer, engine_.dilations, tokens);
                                   });
    return {std::move(rows.out), std::move(rows.lse), rows.bytes_fetched, rows.clock};
  }

  void report(std::span<const float> out, const dilated::Result& result) {
    BlockReport report =
        make_block_report(run_, policy(), transport_, {"load", "store", "plan", "fetch", "attend", "merge", "write"},
                          result.clock, result.bytes_fetched, out);
    if (run_.rank() != RankId(0)) return;
    std::string pairs;
    for (const kernels::Dilation& dilation : engine_.dilations) {
      pairs += fmt::format("{}{}:{}", pairs.empty() ? "" : ",", dilation.segment, dilation.rate);
    }
    report.policy = "dilated";
    report.rows = {{"policy", fmt::format("dilated: segments {}", pairs)}};
    report.fields["dilation"] = pairs;
    show_report(report, run_.options());
  }

  LayerRun run_;
  dilated::Options engine_;
  comm::ChosenTransport transport_;
};

}  // namespace

void run_dilated(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry) {
  DilatedCommand(options, ranks, telemetry).run();
}

}  // namespace ringmark::cluster
