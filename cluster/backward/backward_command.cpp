#include "cluster/backward/backward_command.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/backward/backward_options.h"
#include "cluster/backward/backward_report.h"
#include "cluster/job/host.h"
#include "cluster/job/job.h"
#include "cluster/job/progress.h"
#include "cluster/job/stage_seconds.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/layer_source.h"
#include "cluster/prefill/prefill_report.h"
#include "kernels/cpu/isa.h"
#include "runtime/agreement.h"
#include "runtime/backward.h"
#include "runtime/backward_memory.h"
#include "runtime/dense/memory_plan.h"
#include "runtime/dense/prefill.h"
#include "runtime/gradient_files.h"
#include "runtime/reference_backward.h"
#include "runtime/reference_prefill.h"
#include "runtime/selector.h"

namespace ringmark::cluster {
namespace {

namespace dense = runtime::dense;

class BackwardCommand {
 public:
  BackwardCommand(const BackwardOptions& options, comm::Communicator& ranks, Telemetry& telemetry)
      : options_(options),
        ranks_(ranks),
        telemetry_(telemetry),
        rank_(ranks.rank()),
        threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {}

  // The rows are read once for the forward and once for the backward, which both move K and V into blocks.
  void run() {
    clock_.record_in(&telemetry_.trace());
    prepare();
    const runtime::PrefillResult forward = run_forward();
    const runtime::BackwardResult result = run_backward(forward);
    if (!options_.output.empty()) {
      const auto span = clock_.time("write");
      runtime::write_gradients(ranks_, output(), problem(), policy_, *layout_, result);
    }
    report(forward, result);
  }

 private:
  const AttentionProblem& problem() const { return source_->problem(); }
  bool by_reference() const { return options_.backend == kernels::Backend::kReference; }
  runtime::GradientOutput output() const {
    const bool scores = policy_.selects() && policy_.scorer == Scorer::kHils;
    return {options_.output, scores && source_->has_retrieval_queries()};
  }

  // Everything that can be refused is refused here, before anything large is allocated.
  void prepare() {
    runtime::agree(ranks_, "read the input", [&] {
      source_ = std::make_unique<LayerSource>(options_);
      policy_ = options_.exact() ? dense::whole_window(problem()) : source_->policy();
      runtime::check_backward(problem(), policy_);
      gradient_ = std::make_unique<runtime::GradientFile>(options_.gradient, problem());
    });
    grid_ = std::make_unique<partition::SequenceGrid>(problem(), policy_);
    limit_ = options_.memory_bytes().value_or(available_memory() / ranks_.host_ranks());
    agree_on_budgets();
    runtime::agree(ranks_, "plan memory", [&] {
      check_memory(runtime::even_share(*grid_, ranks_.size()));
      if (!options_.output.empty() && rank_ == RankId(0)) {
        runtime::check_gradient_output(output(), problem(), policy_);
      }
    });
    layout_ = std::make_unique<partition::Layout>(partition::make_layout(*grid_, ranks_.size(), options_.balance));
    const auto cost = runtime::merge_cost(problem(), policy_, *layout_);
    forward_.merge = runtime::choose_merge(options_.merge, cost, forward_.table_budget);
    runtime::agree(ranks_, "plan memory", [&] { check_memory(runtime::shard_size(*layout_, rank_)); });
  }

  // One host with less memory must not make its ranks merge otherwise, or cut pieces and stretches otherwise.
  void agree_on_budgets() {
    const std::int64_t gradient = options_.gradient_mib ? *options_.gradient_mib << 20 : backward_.gradient_budget;
    const std::int64_t fetch = options_.fetch_mib ? *options_.fetch_mib << 20 : backward_.fetch_budget;
    std::array<std::int64_t, 3> least = {-gradient, -fetch, -limit_ / 4};
    ranks_.all_reduce_max("agree on memory", least);
    backward_.gradient_budget = -least[0];
    backward_.fetch_budget = forward_.fetch_budget = dense_.fetch_budget = -least[1];
    forward_.table_budget = -least[2];
    backward_.trace = forward_.trace = dense_.trace = &telemetry_.trace();
    backward_.threads = forward_.threads = dense_.threads = threads_;
    // Gathered keys are walked in ascending order: the bits of one rank.
    dense_.strategy = dense::Strategy::kAllGather;
  }

  // The forward is done before the backward begins.
  void check_memory(const runtime::ShardSize& shard) const {
    const bool retrieval = source_->has_retrieval_queries();
    if (by_reference()) {
      const auto plan = runtime::plan_reference_backward_memory(problem(), policy_, shard);
      return runtime::check_memory(plan, limit_, rank_);
    }
    runtime::MemoryPlan forward =
        options_.exact() ? dense::plan_memory(problem(), shard, retrieval, dense_)
                         : runtime::plan_memory(problem(), policy_, shard, retrieval, forward_.merge, forward_);
    runtime::MemoryPlan backward = runtime::plan_backward_memory(problem(), policy_, shard, retrieval, backward_);
    // Blocks of exact attention are not read by peers.
    if (!options_.exact()) forward.spill("blocks", options_.spill());
    backward.spill("blocks", options_.spill());
    runtime::check_memory(forward, limit_, rank_);
    runtime::check_memory(backward, limit_, rank_);
  }

  runtime::LayerShard load() {
    const auto span = clock_.time("load");
    std::optional<runtime::LayerShard> shard;
    runtime::agree(ranks_, "load the layer", [&] { shard = source_->shard(*layout_, rank_, threads_); });
    return std::move(*shard);
  }

  comm::BlockTransport& choose_transport() {
    runtime::agree(ranks_, "choose the transport", [&] {
      const auto chunks = static_cast<std::int64_t>(layout_->chunks_of(rank_).size());
      transport_ = comm::choose_transport(ranks_, host_transport(options_.transport),
                                          runtime::exposed_bytes(problem(), policy_, chunks), options_.spill());
    });
    transport_ = telemetry_.observe(std::move(transport_));
    return *transport_.transport;
  }

  runtime::PrefillResult run_forward() {
    runtime::LayerShard shard = load();
    const auto span = clock_.time("forward");
    if (by_reference()) return runtime::reference_prefill(ranks_, problem(), policy_, *layout_, shard, threads_);
    Progress shown(ranks_.rank(), options_.quiet);
    ObservedProgress progress(telemetry_.state(), shown);
    if (!options_.exact()) {
      return runtime::prefill(ranks_, choose_transport(), problem(), policy_, *layout_, shard, forward_, progress);
    }
    dense::Result exact = dense::prefill(ranks_, problem(), *grid_, *layout_, shard, dense_, progress);
    runtime::PrefillResult result;
    result.out = std::move(exact.out);
    result.lse = std::move(exact.lse);
    result.selection = kernels::Selection(shard.rows(), problem().kv_heads, 0);
    result.bytes_fetched = exact.received.keys;
    return result;
  }

  runtime::BackwardResult run_backward(const runtime::PrefillResult& forward) {
    runtime::LayerShard shard = load();
    std::vector<float> gradient;
    {
      const auto span = clock_.time("load");
      runtime::agree(ranks_, "load the gradient", [&] { gradient = gradient_->load(*layout_, rank_); });
    }
    if (by_reference()) {
      transport_ = {nullptr, "none: the reference gathers the whole layer"};
      return runtime::reference_backward(ranks_, problem(), policy_, *layout_, shard, forward.selection, gradient,
                                         threads_);
    }
    Progress shown(ranks_.rank(), options_.quiet);
    ObservedProgress progress(telemetry_.state(), shown);
    return runtime::backward(ranks_, choose_transport(), problem(), policy_, *layout_, shard,
                             {forward.out, forward.lse, forward.selection}, gradient, backward_, progress);
  }

  void report(const runtime::PrefillResult& forward, const runtime::BackwardResult& result) {
    const BackwardReport report = make_report(forward, result);
    if (rank_ != RankId(0)) return;
    fmt::print("{}", report_table(report));
    if (options_.digest) fmt::print("selection_digest {}\n", digest_text(report.selection_digest));
    std::fflush(stdout);
    if (!options_.json.empty()) write_text_file(options_.json, report_json(report));
  }

  // Collective.
  BackwardReport make_report(const runtime::PrefillResult& forward, const runtime::BackwardResult& result) {
    BackwardReport report;
    report.problem = problem();
    report.policy = policy_;
    report.policy_name = options_.policy.name;
    report.documents = static_cast<std::int64_t>(grid_->documents().size());
    report.ranks = ranks_.size();
    report.threads = threads_;
    report.instruction_set = by_reference() ? "fp64" : name_of(kernels::cpu::active_isa());
    report.transport_reason = transport_.why;
    report.balance = name_of(options_.balance);
    report.backend = name_of(options_.backend);
    report.balance_max_over_mean = partition::measure_balance(*grid_, *layout_).max_over_mean;
    const std::vector<std::string> stages = {"load",   "forward",  "landmarks", "plan", "fetch",
                                             "attend", "exchange", "finish",    "write"};
    report.seconds = slowest(ranks_, stages, std::array{&std::as_const(clock_), &result.clock});
    std::array<std::int64_t, 4> sums = {
        static_cast<std::int64_t>(kernels::selection_digest(forward.selection, layout_->tokens_of(rank_))),
        forward.bytes_fetched + forward.bytes_merged, result.bytes_fetched, result.bytes_gradients};
    ranks_.all_reduce_sum("report", sums);
    report.selection_digest = static_cast<std::uint64_t>(sums[0]);
    report.bytes_forward = sums[1];
    report.bytes_fetched = sums[2];
    report.bytes_gradients = sums[3];
    report.bytes_ring = backward_ring_bytes(problem(), ranks_.size());
    report.stretches = result.stretches;
    std::array<std::int64_t, 1> peak = {peak_memory()};
    ranks_.all_reduce_max("report", peak);
    report.peak_memory_bytes = peak[0];
    return report;
  }

  const BackwardOptions& options_;
  comm::Communicator& ranks_;
  Telemetry& telemetry_;
  RankId rank_;
  int threads_;
  std::int64_t limit_ = 0;  // bytes this rank may hold
  AttentionPolicy policy_;
  runtime::PrefillOptions forward_;
  dense::Options dense_;
  runtime::BackwardOptions backward_;
  std::unique_ptr<LayerSource> source_;
  std::unique_ptr<runtime::GradientFile> gradient_;
  std::unique_ptr<partition::SequenceGrid> grid_;
  std::unique_ptr<partition::Layout> layout_;
  comm::ChosenTransport transport_;
  runtime::StageClock clock_;
};

}  // namespace

int run_backward(const std::vector<std::string>& arguments, const Environment& environment) {
  std::optional<BackwardOptions> options;
  try {
    options = parse_backward_options(arguments, environment);
  } catch (const Error& error) {
    return refuse_options(error);
  }
  Telemetry telemetry(*options, "backward", std::string(options->policy.name));
  return run_job(job_options(*options, options->backend, options->transport, telemetry),
                 [&](comm::Communicator& ranks, Termination&) {
                   telemetry.start(ranks);
                   BackwardCommand(*options, ranks, telemetry).run();
                   telemetry.finish(ranks);
                 });
}

}  // namespace ringmark::cluster
