#include "cluster/prefill/dense_command.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <utility>

#include "cluster/job/progress.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/dense_report.h"
#include "cluster/prefill/layer_run.h"
#include "cluster/prefill/prefill_report.h"
#include "runtime/agreement.h"
#include "runtime/dense/memory_plan.h"
#include "runtime/dense/prefill.h"
#include "runtime/dense/rates.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace dense = runtime::dense;

class DenseCommand {
 public:
  DenseCommand(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : run_(options, ranks, telemetry), options_(options) {}

  void run() {
    run_.open();
    engine_.fetch_budget = run_.fetch_budget();
    engine_.threads = run_.threads();
    engine_.trace = &run_.trace();
    choose();
    run_.plan(policy(), {options_.output}, policy(),
              [this](const runtime::ShardSize& shard) { return plan_memory(shard); });
    runtime::LayerShard shard = run_.load();
    const dense::Result result = compute(shard);
    write(result);
    report(result);
  }

 private:
  const AttentionProblem& problem() const { return run_.problem(); }
  AttentionPolicy policy() const { return dense::whole_window(problem()); }

  // Links are measured only where the choice hangs on it.
  void choose() {
    const dense::Work work{run_.ranks().size(), problem().tokens,        0, problem().heads, problem().kv_heads,
                           problem().head_dim,  size_of(problem().dtype)};
    const auto asked = options_.dense->strategy;
    dense::Rates rates;
    if (asked == dense::Strategy::kAuto && !run_.by_reference()) {
      rates = dense::measure_rates(run_.ranks(), run_.threads(), engine_.fetch_budget);
    }
    runtime::agree(run_.ranks(), "choose the merge", [&] {
      choice_ = dense::choose(asked, static_cast<int>(options_.dense->ulysses_ranks), work, rates);
    });
    if (run_.by_reference()) choice_.why = "none: the reference gathers the whole layer";
    engine_.strategy = choice_.strategy;
    engine_.ulysses_ranks = choice_.ulysses_ranks;
  }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) const {
    if (run_.by_reference()) return runtime::plan_reference_memory(problem(), policy(), shard);
    return dense::plan_memory(problem(), shard, run_.source().has_retrieval_queries(), engine_);
  }

  dense::Result compute(runtime::LayerShard& shard) {
    if (!run_.by_reference()) {
      Progress shown(run_.ranks().rank(), options_.quiet);
      ObservedProgress progress(run_.telemetry().state(), shown);
      return dense::prefill(run_.ranks(), problem(), run_.grid(), run_.layout(), shard, engine_, progress);
    }
    runtime::PrefillResult reference =
        runtime::reference_prefill(run_.ranks(), problem(), policy(), run_.layout(), shard, run_.threads());
    return {std::move(reference.out), std::move(reference.lse), {reference.bytes_fetched, 0, 0}, reference.clock};
  }

  void write(const dense::Result& result) {
    if (options_.output.empty()) return;
    runtime::PrefillResult rows;
    rows.out = result.out;
    rows.lse = result.lse;
    run_.write({options_.output}, policy(), rows);
  }

  void report(const dense::Result& result) {
    const DenseReport report = make_report(result);
    if (run_.rank() != RankId(0)) return;
    fmt::print("{}", report_table(report));
    std::fflush(stdout);
    if (!options_.json.empty()) write_text_file(options_.json, report_json(report));
  }

  // Collective.
  DenseReport make_report(const dense::Result& result) {
    DenseReport report;
    static_cast<RunReport&>(report) = report_of_run(
        run_, {"load", "store", "exchange", "fetch", "attend", "merge", "write"}, result.clock, result.out);
    report.merge = run_.by_reference() ? "none" : name_of(choice_.strategy);
    report.merge_reason = choice_.why;
    report.ulysses_ranks = choice_.ulysses_ranks;
    std::array<std::int64_t, 3> sums = {result.received.keys, result.received.queries, result.received.partials};
    run_.ranks().all_reduce_sum("report", sums);
    report.received = {sums[0], sums[1], sums[2]};
    return report;
  }

  LayerRun run_;
  const PrefillOptions& options_;
  dense::Options engine_;
  dense::Choice choice_;
};

}  // namespace

void run_dense(const PrefillOptions& options, comm::Communicator& ranks, Telemetry& telemetry) {
  DenseCommand(options, ranks, telemetry).run();
}

}  // namespace ringmark::cluster
