#include "cluster/dense_command.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/dense_report.h"
#include "cluster/host.h"
#include "cluster/layer_source.h"
#include "cluster/prefill_report.h"
#include "cluster/progress.h"
#include "cluster/text_file.h"
#include "cluster/trace_output.h"
#include "kernels/cpu/isa.h"
#include "runtime/agreement.h"
#include "runtime/dense/memory_plan.h"
#include "runtime/dense/prefill.h"
#include "runtime/dense/rates.h"
#include "runtime/layer_output.h"
#include "runtime/reference_prefill.h"

namespace ringmark::cluster {
namespace {

namespace dense = runtime::dense;

class DenseCommand {
 public:
  DenseCommand(const PrefillOptions& options, comm::Communicator& ranks)
      : options_(options),
        ranks_(ranks),
        rank_(ranks.rank()),
        threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {}

  void run() {
    clock_.record_in(&trace_);
    prepare();
    runtime::LayerShard shard = load();
    const dense::Result result = compute(shard);
    if (!options_.output.empty()) write(result);
    report(result);
    if (!options_.trace.empty()) write_trace(ranks_, trace_, options_.trace);
  }

 private:
  const AttentionProblem& problem() const { return source_->problem(); }
  AttentionPolicy policy() const { return dense::whole_window(problem()); }
  bool by_reference() const { return options_.backend == kernels::Backend::kReference; }

  // Everything that can be refused is refused here, before anything large is allocated.
  void prepare() {
    runtime::agree(ranks_, "check the outputs", [&] {
      check_run_files(options_, rank_);
      if (!options_.trace.empty() && rank_ == RankId(0)) check_text_file(options_.trace);
    });
    runtime::agree(ranks_, "read the input", [&] { source_ = std::make_unique<LayerSource>(options_); });
    grid_ = std::make_unique<partition::SequenceGrid>(problem(), policy());
    limit_ = options_.memory_bytes().value_or(available_memory() / ranks_.host_ranks());
    engine_.fetch_budget = options_.fetch_mib ? *options_.fetch_mib << 20 : engine_.fetch_budget;
    engine_.threads = threads_;
    engine_.trace = &trace_;
    // Pieces of an all-gather are cut alike on every rank.
    std::array<std::int64_t, 1> least = {-engine_.fetch_budget};
    ranks_.all_reduce_max("agree on memory", least);
    engine_.fetch_budget = -least[0];
    choose();
    runtime::agree(ranks_, "plan memory", [&] {
      check_memory(runtime::even_share(*grid_, ranks_.size()));
      const runtime::OutputFile output{options_.output};
      if (!output.path.empty() && rank_ == RankId(0)) runtime::check_output(output, problem(), policy());
    });
    layout_ = std::make_unique<partition::Layout>(partition::make_layout(*grid_, ranks_.size(), options_.balance));
    const runtime::ShardSize shard = runtime::shard_size(*layout_, rank_);
    if (options_.memory_plan && rank_ == RankId(0)) {
      fmt::print("memory of rank 0\n{}", runtime::describe(plan_memory(shard), limit_));
      std::fflush(stdout);
    }
    runtime::agree(ranks_, "plan memory", [&] { check_memory(shard); });
  }

  // Links are measured only where the choice hangs on it.
  void choose() {
    const dense::Work work{ranks_.size(),      problem().tokens,        0, problem().heads, problem().kv_heads,
                           problem().head_dim, size_of(problem().dtype)};
    const auto asked = options_.dense->strategy;
    dense::Rates rates;
    if (asked == dense::Strategy::kAuto && !by_reference()) {
      rates = dense::measure_rates(ranks_, threads_, engine_.fetch_budget);
    }
    runtime::agree(ranks_, "choose the merge", [&] {
      choice_ = dense::choose(asked, static_cast<int>(options_.dense->ulysses_ranks), work, rates);
    });
    if (by_reference()) choice_.why = "none: the reference gathers the whole layer";
    engine_.strategy = choice_.strategy;
    engine_.ulysses_ranks = choice_.ulysses_ranks;
  }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard) const {
    if (by_reference()) return runtime::plan_reference_memory(problem(), policy(), shard);
    return dense::plan_memory(problem(), shard, source_->has_retrieval_queries(), engine_);
  }
  void check_memory(const runtime::ShardSize& shard) const { runtime::check_memory(plan_memory(shard), limit_, rank_); }

  runtime::LayerShard load() {
    const auto span = clock_.time("load");
    std::optional<runtime::LayerShard> shard;
    runtime::agree(ranks_, "load the layer", [&] { shard = source_->shard(*layout_, rank_, threads_); });
    return std::move(*shard);
  }

  dense::Result compute(runtime::LayerShard& shard) {
    if (!by_reference()) {
      Progress progress(ranks_.rank(), options_.quiet);
      return dense::prefill(ranks_, problem(), *grid_, *layout_, shard, engine_, progress);
    }
    runtime::PrefillResult reference =
        runtime::reference_prefill(ranks_, problem(), policy(), *layout_, shard, threads_);
    return {std::move(reference.out), std::move(reference.lse), {reference.bytes_fetched, 0, 0}, reference.clock};
  }

  void write(const dense::Result& result) {
    const auto span = clock_.time("write");
    runtime::PrefillResult rows;
    rows.out = result.out;
    rows.lse = result.lse;
    runtime::write_output(ranks_, {options_.output}, problem(), policy(), *layout_, rows);
  }

  void report(const dense::Result& result) {
    const DenseReport report = make_report(result);
    if (rank_ != RankId(0)) return;
    fmt::print("{}", report_table(report));
    std::fflush(stdout);
    if (!options_.json.empty()) write_text_file(options_.json, report_json(report));
  }

  // Collective.
  DenseReport make_report(const dense::Result& result) {
    DenseReport report;
    report.problem = problem();
    report.documents = static_cast<std::int64_t>(grid_->documents().size());
    report.ranks = ranks_.size();
    report.threads = threads_;
    report.instruction_set = by_reference() ? "fp64" : name_of(kernels::cpu::active_isa());
    report.balance = name_of(options_.balance);
    report.backend = name_of(options_.backend);
    report.balance_max_over_mean = partition::measure_balance(*grid_, *layout_).max_over_mean;
    report.merge = by_reference() ? "none" : name_of(choice_.strategy);
    report.merge_reason = choice_.why;
    report.ulysses_ranks = choice_.ulysses_ranks;
    const std::vector<std::string> stages = {"load", "store", "exchange", "fetch", "attend", "merge", "write"};
    report.seconds = slowest(ranks_, stages, std::array{&std::as_const(clock_), &result.clock});
    std::array<std::int64_t, 3> sums = {result.received.keys, result.received.queries, result.received.partials};
    ranks_.all_reduce_sum("report", sums);
    report.received = {sums[0], sums[1], sums[2]};
    report.bytes_ring = ring_bytes(problem(), ranks_.size());
    std::array<std::int64_t, 1> peak = {peak_memory()};
    ranks_.all_reduce_max("report", peak);
    report.peak_memory_bytes = peak[0];
    report.positions = source_->positions();
    const auto needles = source_->count_needles(ranks_, layout_->tokens_of(rank_), result.out);
    report.needles_planted = needles.planted;
    report.needles_recovered = needles.recovered;
    return report;
  }

  const PrefillOptions& options_;
  comm::Communicator& ranks_;
  RankId rank_;
  int threads_;
  std::int64_t limit_ = 0;  // bytes this rank may hold
  dense::Options engine_;
  dense::Choice choice_;
  std::unique_ptr<LayerSource> source_;
  std::unique_ptr<partition::SequenceGrid> grid_;
  std::unique_ptr<partition::Layout> layout_;
  runtime::Trace trace_;
  runtime::StageClock clock_;
};

}  // namespace

void run_dense(const PrefillOptions& options, comm::Communicator& ranks) { DenseCommand(options, ranks).run(); }

}  // namespace ringmark::cluster
