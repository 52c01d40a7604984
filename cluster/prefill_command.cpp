#include "cluster/prefill_command.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/gpu_rank.h"
#include "cluster/host.h"
#include "cluster/job.h"
#include "cluster/prefill_options.h"
#include "cluster/prefill_report.h"
#include "cluster/progress.h"
#include "cluster/stage_seconds.h"
#include "cluster/text_file.h"
#include "kernels/cpu/isa.h"
#include "kvstore/prefix_hash.h"
#include "kvstore/snapshot.h"
#include "runtime/agreement.h"
#include "runtime/layer_file.h"
#include "runtime/layer_output.h"
#include "runtime/locality.h"
#include "runtime/memory_plan.h"
#include "runtime/planted_layer.h"
#include "runtime/prefill.h"
#include "runtime/prefill_snapshot.h"
#include "runtime/reference_prefill.h"
#include "runtime/selector.h"

namespace ringmark::cluster {
namespace {

// Where the layer comes from: a file or the planted generator.
class LayerSource {
 public:
  explicit LayerSource(const PrefillOptions& options) {
    if (!options.planted) {
      runtime::LayerOverrides overrides{options.chunk, options.window, options.topk, options.sinks, options.scale, {}};
      if (!options.cu_seqlens.empty()) overrides.cu_seqlens = options.cu_seqlens;
      file_ = std::make_unique<runtime::LayerFile>(options.input, overrides);
      problem_ = file_->problem();
      policy_ = file_->policy();
      policy_.scorer = options.scorer;
      return;
    }
    const PlantedOptions& planted = *options.planted;
    problem_ = {
        planted.tokens, planted.heads, planted.kv_heads,  planted.head_dim, options.chunk.value_or(64), planted.dtype,
        1.0f,           true,          options.cu_seqlens};
    const double usual_scale = 1.0 / std::sqrt(static_cast<double>(planted.head_dim));
    problem_.scale = static_cast<float>(options.scale.value_or(usual_scale));
    policy_ = {options.window.value_or(policy_.window), options.topk.value_or(policy_.topk), options.sinks.value_or(0),
               options.scorer};
    problem_.validate();
    policy_.validate(problem_);
    planted_ = std::make_unique<runtime::PlantedLayer>(
        problem_, policy_, runtime::PlantedOptions{planted.needles, planted.agreement, planted.topics, options.seed});
  }

  const AttentionProblem& problem() const { return problem_; }
  const AttentionPolicy& policy() const { return policy_; }
  std::vector<std::int64_t> token_ids() const {
    return file_ != nullptr ? file_->token_ids() : std::vector<std::int64_t>{};
  }
  bool has_retrieval_queries() const { return file_ != nullptr && file_->has_retrieval_queries(); }

  runtime::LayerShard shard(const partition::Layout& layout, RankId rank, int threads) const {
    return file_ != nullptr ? file_->load(layout, rank) : planted_->make_shard(layout, rank, threads);
  }
  runtime::NeedleCount count_needles(comm::Communicator& ranks, std::span<const TokenId> tokens,
                                     std::span<const float> out) const {
    return planted_ != nullptr ? planted_->count_recovered(ranks, tokens, out) : runtime::NeedleCount{};
  }

 private:
  std::unique_ptr<runtime::LayerFile> file_;
  std::unique_ptr<runtime::PlantedLayer> planted_;
  AttentionProblem problem_;
  AttentionPolicy policy_;
};

class PrefillCommand {
 public:
  PrefillCommand(const PrefillOptions& options, comm::Communicator& ranks)
      : options_(options),
        ranks_(ranks),
        rank_(ranks.rank()),
        threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {}

  void run() {
    clock_.record_in(&trace_);
    prepare();
    runtime::LayerShard shard = load();
    if (!options_.snapshot.empty()) prepare_snapshot();
    const runtime::PrefillResult result = compute(shard);
    if (!options_.output.empty()) {
      const auto span = clock_.time("write");
      runtime::write_output(ranks_, output(), problem(), policy(), *layout_, result);
    }
    report(result);
    if (!options_.trace.empty()) write_trace();
  }

 private:
  const AttentionProblem& problem() const { return source_->problem(); }
  const AttentionPolicy& policy() const { return source_->policy(); }
  runtime::OutputFile output() const { return {options_.output, options_.topk_chunks}; }

  // Everything that can be refused is refused here, before anything large is allocated: the memory once by an even
  // share, before the layout's own tables, and once by the shard itself.
  void prepare() {
    runtime::agree(ranks_, "check the outputs", [&] {
      check_run_files(options_, rank_);
      if (!options_.trace.empty() && rank_ == RankId(0)) check_text_file(options_.trace);
    });
    runtime::agree(ranks_, "read the input", [&] { source_ = std::make_unique<LayerSource>(options_); });
    grid_ = std::make_unique<partition::SequenceGrid>(problem(), policy());
    if (on_gpu()) runtime::agree(ranks_, "choose the GPU", [&] { gpu_ = make_gpu_rank(ranks_, options_); });
    const std::int64_t usual_limit = on_gpu() ? gpu_->memory_limit() : available_memory() / ranks_.host_ranks();
    limit_ = options_.memory_bytes().value_or(usual_limit);
    const std::int64_t usual_budget = on_gpu() ? limit_ / 4 : engine_.fetch_budget;
    engine_.fetch_budget = options_.fetch_mib ? *options_.fetch_mib << 20 : usual_budget;
    engine_.threads = threads_;
    engine_.trace = &trace_;
    // One host with less memory must not make its ranks merge differently from the others.
    std::array<std::int64_t, 1> least = {-limit_ / 4};
    ranks_.all_reduce_max("agree on memory", least);
    engine_.table_budget = -least[0];
    runtime::agree(ranks_, "plan memory", [&] {
      check_memory(runtime::even_share(*grid_, ranks_.size()), runtime::Merge::kScores);
      if (!options_.output.empty() && rank_ == RankId(0)) runtime::check_output(output(), problem(), policy());
      if (!options_.snapshot.empty() && rank_ == RankId(0)) {
        kvstore::check_snapshot_folder(options_.snapshot,
                                       kvstore::snapshot_bytes(problem(), policy(), options_.kv_format));
      }
    });
    layout_ = std::make_unique<partition::Layout>(partition::make_layout(*grid_, ranks_.size(), options_.balance));
    const auto cost = runtime::merge_cost(problem(), policy(), *layout_);
    engine_.merge = runtime::choose_merge(options_.merge, cost, engine_.table_budget);
    const runtime::ShardSize shard = runtime::shard_size(*layout_, rank_);
    if (options_.memory_plan && rank_ == RankId(0)) {
      fmt::print("memory of rank 0{}\n{}", on_gpu() ? ", on its GPU" : "",
                 runtime::describe(plan_memory(shard, engine_.merge), limit_));
      std::fflush(stdout);
    }
    runtime::agree(ranks_, "plan memory", [&] { check_memory(shard, engine_.merge); });
  }

  bool on_gpu() const { return options_.backend == kernels::Backend::kCuda; }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard, runtime::Merge merge) const {
    const bool retrieval = source_->has_retrieval_queries();
    if (on_gpu()) return gpu_->plan(problem(), policy(), *grid_, shard, retrieval, merge);
    if (options_.backend == kernels::Backend::kReference) {
      return runtime::plan_reference_memory(problem(), policy(), shard);
    }
    runtime::MemoryPlan plan = runtime::plan_memory(problem(), policy(), shard, retrieval, merge, engine_);
    if (!options_.snapshot.empty()) {
      plan.items.push_back(
          {"encoded blocks", runtime::snapshot_buffer_bytes(problem(), options_.kv_format, shard.chunks)});
    }
    return plan;
  }
  void check_memory(const runtime::ShardSize& shard, runtime::Merge merge) const {
    runtime::check_memory(plan_memory(shard, merge), limit_, rank_);
  }

  runtime::LayerShard load() {
    const auto span = clock_.time("load");
    std::unique_ptr<runtime::LayerShard> shard;
    runtime::agree(ranks_, "load the layer",
                   [&] { shard = std::make_unique<runtime::LayerShard>(source_->shard(*layout_, rank_, threads_)); });
    return std::move(*shard);
  }

  // The state of the layer goes to the snapshot before the engine lets go of it.
  void prepare_snapshot() {
    runtime::SnapshotTarget target{options_.snapshot, options_.kv_format};
    std::string prefix_hashes = "none, the input has no token_ids";
    runtime::agree(ranks_, "hash the prefixes", [&] {
      if (rank_ != RankId(0)) return;
      const std::vector<std::int64_t> ids = source_->token_ids();
      if (ids.empty()) return;
      prefix_hashes = kvstore::can_hash_prefixes() ? "yes" : "none, this build has no OpenSSL";
      if (kvstore::can_hash_prefixes()) target.prefix_hashes = kvstore::prefix_hashes(*grid_, ids);
    });
    engine_.keep = [this, target, prefix_hashes](const runtime::PrefillState& state) {
      const auto span = clock_.time("write");
      const auto written = runtime::write_prefill_snapshot(ranks_, target, problem(), policy(), state);
      snapshot_ = {options_.snapshot, written.generation,
                   target.format,     kvstore::snapshot_bytes(problem(), policy(), target.format),
                   prefix_hashes,     written.error};
    };
  }

  runtime::PrefillResult compute(runtime::LayerShard& shard) {
    if (options_.backend == kernels::Backend::kReference) {
      transport_ = {nullptr, "none: the reference gathers the whole layer"};
      return runtime::reference_prefill(ranks_, problem(), policy(), *layout_, shard, threads_);
    }
    Progress progress(ranks_.rank(), options_.quiet);
    if (on_gpu()) return gpu_->prefill(problem(), policy(), *layout_, shard, engine_, progress, &trace_);
    runtime::agree(ranks_, "choose the transport", [&] {
      const auto chunks = static_cast<std::int64_t>(layout_->chunks_of(rank_).size());
      const auto choice = options_.transport == TransportName::kRma       ? comm::TransportChoice::kRma
                          : options_.transport == TransportName::kRequest ? comm::TransportChoice::kRequest
                          : options_.transport == TransportName::kUcx     ? comm::TransportChoice::kUcx
                                                                          : comm::TransportChoice::kAuto;
      transport_ = comm::choose_transport(ranks_, choice, runtime::exposed_bytes(problem(), policy(), chunks));
    });
    return runtime::prefill(ranks_, *transport_.transport, problem(), policy(), *layout_, shard, engine_, progress);
  }

  void report(const runtime::PrefillResult& result) {
    const PrefillReport report = make_report(result);
    if (rank_ != RankId(0)) return;
    fmt::print("{}", report_table(report));
    if (options_.digest) fmt::print("selection_digest {}\n", digest_text(report.selection_digest));
    std::fflush(stdout);
    if (!options_.json.empty()) write_text_file(options_.json, report_json(report));
  }

  // Collective.
  PrefillReport make_report(const runtime::PrefillResult& result) {
    const std::vector<TokenId> tokens = layout_->tokens_of(rank_);
    PrefillReport report;
    report.problem = problem();
    report.policy = policy();
    report.documents = static_cast<std::int64_t>(grid_->documents().size());
    report.ranks = ranks_.size();
    report.threads = threads_;
    report.instruction_set = options_.backend == kernels::Backend::kCpu ? name_of(kernels::cpu::active_isa()) : "fp64";
    report.transport = transport_.transport ? std::string(transport_.transport->name()) : "none";
    report.transport_reason = transport_.why;
    if (on_gpu()) describe_gpu(report);
    report.merge = name_of(result.merge);
    report.balance = name_of(options_.balance);
    report.backend = name_of(options_.backend);
    report.balance_max_over_mean = partition::measure_balance(*grid_, *layout_).max_over_mean;
    report.seconds = slowest(ranks_, stages(), std::array{&std::as_const(clock_), &result.clock});
    const std::int64_t kv_bytes =
        problem().tokens * problem().kv_heads * problem().head_dim * 2 * size_of(problem().dtype);
    report.bytes_ring = kv_bytes * (ranks_.size() - 1);
    std::array<std::int64_t, 3> sums = {static_cast<std::int64_t>(kernels::selection_digest(result.selection, tokens)),
                                        result.bytes_fetched, result.bytes_merged};
    ranks_.all_reduce_sum("report", sums);
    report.selection_digest = static_cast<std::uint64_t>(sums[0]);
    report.bytes_fetched = sums[1];
    report.bytes_merged = sums[2];
    report.union_ratio = runtime::union_ratios(ranks_, result.selection, tokens);
    report.snapshot = snapshot_;
    const auto needles = source_->count_needles(ranks_, tokens, result.out);
    report.needles_planted = needles.planted;
    report.needles_recovered = needles.recovered;
    std::array<std::int64_t, 1> peak = {peak_memory()};
    ranks_.all_reduce_max("report", peak);
    report.peak_memory_bytes = peak[0];
    return report;
  }

  // Collective.
  void describe_gpu(PrefillReport& report) {
    const GpuReport& gpu = gpu_->report();
    std::array<std::int64_t, 2> pairs = {gpu.pairs, gpu.exact_pairs};
    ranks_.all_reduce_sum("report", pairs);
    report.instruction_set = gpu.kernels;
    report.transport = gpu.transport;
    report.transport_reason = gpu.transport_reason;
    report.device = gpu.device;
    report.fetch = gpu.fetch;
    report.pairs = pairs[0];
    report.exact_pairs = pairs[1];
  }

  // Collective: the events of all ranks in one file of rank 0.
  void write_trace() {
    const auto of_ranks = ranks_.gather_texts("gather the trace", runtime::trace_events(trace_, ranks_.rank()));
    if (rank_ != RankId(0)) return;
    std::string events;
    for (const std::string& text : of_ranks) events += text;
    write_text_file(options_.trace, runtime::trace_file(events));
  }

  std::vector<std::string> stages() const {
    if (on_gpu()) {
      return {"load",   "store", "landmarks", "plan",  "fetch",  "window",
              "select", "score", "settle",    "exact", "attend", "write"};
    }
    return {"load", "landmarks", "plan", "fetch", "window", "select", "attend", "write"};
  }

  const PrefillOptions& options_;
  comm::Communicator& ranks_;
  RankId rank_;
  int threads_;
  std::int64_t limit_ = 0;  // bytes this rank may hold
  runtime::PrefillOptions engine_;
  std::unique_ptr<LayerSource> source_;
  std::unique_ptr<partition::SequenceGrid> grid_;
  std::unique_ptr<partition::Layout> layout_;
  std::unique_ptr<GpuRank> gpu_;  // only with --backend cuda
  comm::ChosenTransport transport_;
  std::optional<SnapshotReport> snapshot_;
  runtime::Trace trace_;
  runtime::StageClock clock_;
};

}  // namespace

int run_prefill(const std::vector<std::string>& arguments, const Environment& environment) {
  std::optional<PrefillOptions> options;
  try {
    options = parse_prefill_options(arguments, environment);
  } catch (const Error& error) {
    return refuse_options(error);
  }
  return run_job({std::chrono::duration<double>(options->deadline_seconds), options->log_dir},
                 [&](comm::Communicator& ranks, Termination&) { PrefillCommand(*options, ranks).run(); });
}

}  // namespace ringmark::cluster
