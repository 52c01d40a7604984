#include "cluster/prefill/compressive_command.h"

#include "cluster/job/progress.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/pooled_report.h"
#include "kernels/reference/compressive.h"
#include "runtime/agreement.h"
#include "runtime/compressive/prefill.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace compressive = runtime::compressive;

class CompressiveCommand {
 public:
  CompressiveCommand(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : run_(options, ranks, telemetry), options_(options), policy_(*options.compressive) {}

  void run() {
    run_.open();
    runtime::agree(run_.ranks(), "read the input", [&] {
      policy_.memory = options_.policy.window.value_or(run_.source().policy().window);
      policy_.validate(run_.problem());
    });
    run_.plan(policy_.exact_policy(), output(), policy_.exact_policy(),
              [this](const runtime::ShardSize& shard) { return plan_memory(shard); });
    runtime::LayerShard shard = run_.load();
    const runtime::PrefillResult result = compute(shard);
    run_.write(output(), policy_.exact_policy(), result);
    PrefillReport report = report_of(run_, policy_.exact_policy(), transport_, result);
    report.compressive = policy_;
    if (run_.rank() == RankId(0)) show_report(report, options_);
  }

 private:
  runtime::OutputFile output() const {
    return {options_.output,
            false,
            {{"policy", "compressive"},
             {"compressed_slots", std::to_string(policy_.slots)},
             {"compression_rate", std::to_string(policy_.rate)}}};
  }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) {
    if (run_.by_reference()) return runtime::plan_reference_memory(run_.problem(), policy_.exact_policy(), shard);
    runtime::MemoryPlan plan = compressive::plan_memory(run_.problem(), policy_, shard,
                                                        run_.source().has_retrieval_queries(), pooled_options(run_));
    plan.spill("blocks", options_.spill());
    return plan;
  }

  runtime::PrefillResult compute(runtime::LayerShard& shard) {
    if (run_.by_reference()) {
      return runtime::reference_prefill(
          run_.ranks(), run_.problem(), policy_.exact_policy(), run_.layout(), shard,
          [this](const kernels::reference::Layer& layer, std::span<const TokenId> tokens) {
            return kernels::reference::attend_compressive(layer, policy_, tokens, run_.threads());
          });
    }
    transport_ = transport_of_blocks(run_);
    Progress shown(run_.ranks().rank(), options_.quiet);
    ObservedProgress progress(run_.telemetry().state(), shown);
    return compressive::prefill(run_.ranks(), *transport_.transport, run_.problem(), policy_, run_.layout(), shard,
                                pooled_options(run_), progress);
  }

  LayerRun run_;
  const PrefillOptions& options_;
  CompressivePolicy policy_;
  comm::ChosenTransport transport_;
};

}  // namespace

void run_compressive(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry) {
  CompressiveCommand(options, ranks, telemetry).run();
}

}  // namespace ringmark::cluster
