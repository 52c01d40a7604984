#include "cluster/prefill/nsa_command.h"

#include <fmt/format.h>

#include "cluster/job/progress.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/pooled_report.h"
#include "core/nsa_policy.h"
#include "kernels/reference/nsa.h"
#include "runtime/agreement.h"
#include "runtime/nsa/prefill.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace nsa = runtime::nsa;

class NsaCommand {
 public:
  NsaCommand(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : run_(options, ranks, telemetry), options_(options) {}

  void run() {
    run_.open();
    runtime::agree(run_.ranks(), "read the input", [&] { read_policy(); });
    run_.plan(policy_.window_policy(), output(), policy_.selection_policy(),
              [this](const runtime::ShardSize& shard) { return plan_memory(shard); });
    runtime::LayerShard shard = run_.load();
    runtime::agree(run_.ranks(), "load the gates", [&] { load_gates(); });
    const runtime::PrefillResult result = compute(shard);
    run_.write(output(), policy_.selection_policy(), result);
    PrefillReport report = report_of(run_, policy_.selection_policy(), transport_, result);
    report.gates = gates_of_file() ? "of the input" : fmt::format("{:g}, {:g}, {:g}", usual_[0], usual_[1], usual_[2]);
    if (run_.rank() == RankId(0)) show_report(report, options_);
  }

 private:
  runtime::OutputFile output() const { return {options_.output, options_.topk_chunks, {{"policy", "nsa"}}}; }
  bool gates_of_file() const { return run_.source().file() != nullptr && run_.source().file()->has_gates(); }

  void read_policy() {
    const AttentionPolicy& stored = run_.source().policy();
    policy_.window = options_.policy.window.value_or(stored.window);
    policy_.topk = options_.policy.topk.value_or(stored.topk);
    policy_.validate(run_.problem());
    const auto& asked = options_.nsa->gates;
    if (asked && gates_of_file()) {
      fail_bad_input(fmt::format("gates are given, but {} has a tensor gates", options_.input));
    }
    if (!asked && !gates_of_file() && !options_.planted) {
      fail_bad_input(fmt::format("{} has no tensor gates: --policy nsa needs it or --gates X,Y,Z", options_.input));
    }
    usual_ = asked.value_or(usual_);
  }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) {
    if (run_.by_reference()) {
      return runtime::plan_reference_memory(run_.problem(), policy_.selection_policy(), shard);
    }
    runtime::MemoryPlan plan =
        nsa::plan_memory(run_.problem(), policy_, shard, run_.source().has_retrieval_queries(), pooled_options(run_));
    plan.spill("blocks", options_.spill());
    return plan;
  }

  void load_gates() {
    if (gates_of_file()) {
      gates_ = run_.source().file()->gates(run_.layout(), run_.rank());
      return;
    }
    const std::int64_t rows = run_.layout().token_count(run_.rank());
    for (std::int64_t row = 0; row < rows * run_.problem().heads; ++row) {
      gates_.insert(gates_.end(), usual_.begin(), usual_.end());
    }
  }

  runtime::PrefillResult compute(runtime::LayerShard& shard) {
    if (run_.by_reference()) {
      return runtime::reference_prefill(
          run_.ranks(), run_.problem(), policy_.window_policy(), run_.layout(), shard,
          [this](const kernels::reference::Layer& layer, std::span<const TokenId> tokens) {
            return kernels::reference::attend_nsa(layer, policy_, tokens, gates_, run_.threads());
          });
    }
    transport_ = transport_of_blocks(run_);
    Progress shown(run_.ranks().rank(), options_.quiet);
    ObservedProgress progress(run_.telemetry().state(), shown);
    return nsa::prefill(run_.ranks(), *transport_.transport, run_.problem(), policy_, run_.layout(), shard, gates_,
                        pooled_options(run_), progress);
  }

  LayerRun run_;
  const PrefillOptions& options_;
  NsaPolicy policy_;
  std::array<float, 3> usual_ = {1.0f / 3, 1.0f / 3, 1.0f / 3};  // gates of every token and head
  std::vector<float> gates_;                                     // [rows, H, 3]
  comm::ChosenTransport transport_;
};

}  // namespace

void run_nsa(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry) {
  NsaCommand(options, ranks, telemetry).run();
}

}  // namespace ringmark::cluster
