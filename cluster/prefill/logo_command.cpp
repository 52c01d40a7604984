#include "cluster/prefill/logo_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/job/progress.h"
#include "cluster/options/size_text.h"
#include "cluster/prefill/block_report.h"
#include "cluster/prefill/controller_file.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/pooled_report.h"
#include "comm/block_transport.h"
#include "core/error.h"
#include "kernels/reference/logo.h"
#include "runtime/agreement.h"
#include "runtime/logo/branch_tensors.h"
#include "runtime/logo/prefill.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace logo = runtime::logo;

class LogoCommand {
 public:
  LogoCommand(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : run_(options, ranks, telemetry), options_(*options.logo) {}

  void run() {
    run_.open();
    prepare();
    run_.plan(policy_, output(), policy_, [this](const runtime::ShardSize& shard) { return plan_memory(shard); });
    runtime::LayerShard shard = run_.load();
    const std::vector<float> gates = load_gates();
    logo::Result result = compute(shard, gates);
    runtime::PrefillResult rows;
    rows.out = std::move(result.out);
    rows.lse = std::move(result.lse);
    run_.write(output(), policy_, rows);
    keep_threshold(result);
    report(rows.out, result);
  }

 private:
  const AttentionProblem& problem() const { return run_.problem(); }
  const PrefillOptions& options() const { return run_.options(); }
  runtime::OutputFile output() const { return {options().output, false, {{"policy", "logo"}}}; }

  // What a layer of LoGo has besides, and how its rows are selected.
  void prepare() {
    policy_ = exact_window(options().policy.window.value_or(run_.source().policy().window));
    runtime::agree(run_.ranks(), "read the gates", [&] {
      policy_.validate(problem());
      if (options().planted) return;
      tensors_ = std::make_unique<logo::BranchTensors>(options().input, problem());
      if (tensors_->weights().transforms() && options().positions.rotates()) {
        fail_bad_input(
            fmt::format("{}: logo.global_scale and logo.global_offset do not go with --rope: they belong "
                        "before the rotation",
                        options().input));
      }
    });
    if (options_.controller) {
      controller_ = read_controller(run_.ranks(), options_.controller_file, *options_.controller);
    }
    engine_.threshold = controller_ ? controller_->threshold() : *options_.threshold;
    if (tensors_) engine_.weights = tensors_->weights();
    engine_.global.strategy = options_.strategy;
    engine_.global.fetch_budget = run_.fetch_budget();
    engine_.global.threads = run_.threads();
    engine_.global.trace = &run_.trace();
  }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) const {
    if (run_.by_reference()) return runtime::plan_reference_memory(problem(), policy_, shard);
    runtime::MemoryPlan plan = logo::plan_memory(problem(), shard, run_.source().has_retrieval_queries(), engine_);
    plan.spill("blocks", options().spill());
    return plan;
  }

  std::vector<float> load_gates() {
    if (!tensors_) return run_.source().planted_gates(run_.layout().tokens_of(run_.rank()));
    std::vector<RowRange> rows;
    for (const Range<TokenId>& run : run_.layout().token_runs(run_.rank())) {
      rows.push_back({run.begin.value(), run.end.value()});
    }
    std::vector<float> gates;
    runtime::agree(run_.ranks(), "read the gates", [&] { gates = tensors_->gates(rows); });
    return gates;
  }

  logo::Result compute(runtime::LayerShard& shard, std::span<const float> gates) {
    if (run_.by_reference()) return compute_by_reference(shard);
    transport_ = transport_of_blocks(run_);
    Progress shown(run_.ranks().rank(), options().quiet);
    ObservedProgress progress(run_.telemetry().state(), shown);
    return logo::prefill(run_.ranks(), *transport_.transport, problem(), policy_, run_.layout(), shard, gates, engine_,
                         progress);
  }

  // Every rank computes its rows from the whole layer and the gates of all tokens.
  logo::Result compute_by_reference(const runtime::LayerShard& shard) {
    transport_ = {nullptr, "none: the reference gathers the whole layer"};
    std::vector<float> gates;
    runtime::agree(run_.ranks(), "read the gates", [&] { gates = gates_of_all(); });
    const auto widened = [](const std::vector<float>& values) {
      return std::vector<double>(values.begin(), values.end());
    };
    const logo::BranchWeights& w = engine_.weights;
    const kernels::reference::LogoWeights weights{widened(w.local_norm), widened(w.global_norm),
                                                  widened(w.global_scale), widened(w.global_offset)};
    runtime::PrefillResult rows =
        runtime::reference_prefill(run_.ranks(), problem(), policy_, run_.layout(), shard,
                                   [&](const kernels::reference::Layer& layer, std::span<const TokenId> tokens) {
                                     return kernels::reference::attend_logo(layer, widened(gates), engine_.threshold,
                                                                            weights, tokens, run_.threads());
                                   });
    logo::Result result{std::move(rows.out), std::move(rows.lse), 0, rows.bytes_fetched, {}, rows.clock};
    result.selected = std::count_if(gates.begin(), gates.end(), [&](float gate) { return gate > engine_.threshold; });
    return result;
  }

  std::vector<float> gates_of_all() const {
    if (tensors_) return tensors_->gates(std::array{RowRange{0, problem().tokens}});
    std::vector<TokenId> tokens;
    for (std::int64_t token = 0; token < problem().tokens; ++token) tokens.emplace_back(token);
    return run_.source().planted_gates(tokens);
  }

  // The next run goes on from it; this one is done and its output is in place.
  void keep_threshold(const logo::Result& result) {
    if (!controller_) return;
    controller_->observe(result.selected, problem().tokens);
    runtime::agree(run_.ranks(), "keep the threshold", [&] {
      if (run_.rank() == RankId(0)) write_controller(options_.controller_file, *controller_);
    });
  }

  void report(std::span<const float> out, const logo::Result& result) {
    BlockReport report = make_block_report(
        run_, policy_, transport_, {"load", "store", "plan", "fetch", "window", "attend", "merge", "fuse", "write"},
        result.clock, result.bytes_fetched, out);
    std::array<std::int64_t, 3> moved = {result.received.keys, result.received.queries, result.received.partials};
    run_.ranks().all_reduce_sum("report", moved);
    if (run_.rank() != RankId(0)) return;
    const double share = static_cast<double>(result.selected) / static_cast<double>(problem().tokens);
    report.policy = "logo";
    report.rows = {{"policy", fmt::format("logo: window {}, global branch where gate > {:.6g}, by {}", policy_.window,
                                          engine_.threshold, name_of(options_.strategy))},
                   {"global rows", fmt::format("{} of {} ({:.1f}%)", result.selected, problem().tokens, 100.0 * share)},
                   {"global moved", fmt::format("keys and values {}, queries {}, partial results {}",
                                                bytes_text(moved[0]), bytes_text(moved[1]), bytes_text(moved[2]))}};
    report.fields["merge"] = name_of(options_.strategy);
    report.fields["threshold"] = engine_.threshold;
    report.fields["global_rows"] = result.selected;
    report.fields["global_ratio"] = share;
    report.fields["bytes_global_keys"] = moved[0];
    report.fields["bytes_queries"] = moved[1];
    report.fields["bytes_partials"] = moved[2];
    if (controller_) add_controller(report);
    show_report(report, options());
  }

  void add_controller(BlockReport& report) const {
    report.rows.emplace_back("controller", fmt::format("target {:.1f}%, step {}: threshold {:.6g} next",
                                                       100.0 * options_.controller->target_ratio, controller_->steps(),
                                                       controller_->threshold()));
    report.fields["target_ratio"] = options_.controller->target_ratio;
    report.fields["threshold_next"] = controller_->threshold();
    report.fields["controller_steps"] = controller_->steps();
  }

  LayerRun run_;
  const LogoOptions& options_;
  AttentionPolicy policy_;                        // of the local branch
  std::unique_ptr<logo::BranchTensors> tensors_;  // of a file
  std::optional<logo::ThresholdController> controller_;
  logo::Options engine_;
  comm::ChosenTransport transport_;
};

}  // namespace

void run_logo(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry) {
  LogoCommand(options, ranks, telemetry).run();
}

}  // namespace ringmark::cluster
