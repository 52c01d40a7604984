#include "cluster/prefill/prefill_command.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/job/error_line.h"
#include "cluster/job/host.h"
#include "cluster/job/job.h"
#include "cluster/job/progress.h"
#include "cluster/job/stage_seconds.h"
#include "cluster/prefill/compressive_command.h"
#include "cluster/prefill/dense_command.h"
#include "cluster/prefill/dilated_command.h"
#include "cluster/prefill/gpu_rank.h"
#include "cluster/prefill/layer_source.h"
#include "cluster/prefill/logo_command.h"
#include "cluster/prefill/nsa_command.h"
#include "cluster/prefill/prefill_options.h"
#include "cluster/prefill/prefill_report.h"
#include "cluster/prefill/prefix_source.h"
#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "kvstore/prefix_chains.h"
#include "kvstore/prefix_hash.h"
#include "kvstore/snapshot.h"
#include "runtime/agreement.h"
#include "runtime/layer_output.h"
#include "runtime/locality.h"
#include "runtime/memory_plan.h"
#include "runtime/prefill.h"
#include "runtime/prefill_checkpoint.h"
#include "runtime/prefill_snapshot.h"
#include "runtime/recall.h"
#include "runtime/reference_prefill.h"
#include "runtime/rest_output.h"
#include "runtime/selector.h"

namespace ringmark::cluster {
namespace {

class PrefillCommand {
 public:
  PrefillCommand(const PrefillOptions& options, comm::Communicator& ranks, Termination& termination,
                 Telemetry& telemetry)
      : options_(options),
        ranks_(ranks),
        termination_(termination),
        telemetry_(telemetry),
        rank_(ranks.rank()),
        threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {}

  // Where a checkpoint can be kept it can be told to stop: it then ends after a tile of rows. A layer on a GPU is done
  // before that is worth while.
  void run() {
    clock_.record_in(&telemetry_.trace());
    if (!checkpoint_path().empty()) termination_.accept_requests();
    prepare();
    runtime::LayerShard shard = load();
    if (!options_.snapshot.empty()) prepare_snapshot();
    if (options_.recall) prepare_recall(shard);
    runtime::PrefillResult begun;
    if (!checkpoint_path().empty() && !on_gpu()) begun = resume(shard);
    const runtime::PrefillResult result = compute(shard, std::move(begun));
    if (result.stopped) requeue(result);
    if (!options_.output.empty()) {
      const auto span = clock_.time("write");
      const auto write = reuses() ? runtime::write_rest_output : runtime::write_output;
      write(ranks_, output(), problem(), policy(), *layout_, result);
    }
    if (checkpoint_) checkpoint_->remove(ranks_);
    report(result);
  }

 private:
  const AttentionProblem& problem() const { return source_->problem(); }
  const AttentionPolicy& policy() const { return source_->policy(); }
  runtime::OutputFile output() const { return {options_.output, options_.topk_chunks}; }
  bool reuses() const { return prefix_ && prefix_->found(); }
  // Rows that are left are those of whole chunks: in rotation they are dealt evenly, wherever they are.
  partition::Balance balance() const { return reuses() ? partition::Balance::kRotate : options_.balance; }
  // Empty: there is nothing to keep one beside, or the backend has none. What a reuse leaves is a part of a layer.
  std::string checkpoint_path() const {
    if (options_.backend == kernels::Backend::kReference || !options_.reuse.empty()) return "";
    if (!options_.output.empty()) return options_.output + ".partial";
    return options_.snapshot.empty() ? "" : options_.snapshot + "/prefill.partial";
  }

  // Everything that can be refused is refused here, before anything large is allocated: the memory once by an even
  // share, before the layout's own tables, and once by the shard itself.
  void prepare() {
    runtime::agree(ranks_, "read the input", [&] {
      source_ = std::make_unique<LayerSource>(options_);
      if (options_.recall) check_recall();
    });
    if (!options_.reuse.empty()) prefix_ = std::make_unique<PrefixSource>(options_, *source_, ranks_);
    grid_ = std::make_unique<partition::SequenceGrid>(problem(), policy());
    if (on_gpu()) runtime::agree(ranks_, "choose the GPU", [&] { gpu_ = make_gpu_rank(ranks_, options_); });
    if (on_gpu()) telemetry_.compute_on(gpu_->report().device_name, gpu_->report().device);
    const std::int64_t usual_limit = on_gpu() ? gpu_->memory_limit() : available_memory() / ranks_.host_ranks();
    limit_ = options_.memory_bytes().value_or(usual_limit);
    const std::int64_t usual_budget = on_gpu() ? limit_ / 4 : engine_.fetch_budget;
    engine_.fetch_budget = options_.fetch_mib ? *options_.fetch_mib << 20 : usual_budget;
    engine_.threads = threads_;
    engine_.positions = options_.positions;
    engine_.trace = &telemetry_.trace();
    // One host with less memory must not make its ranks merge differently from the others.
    std::array<std::int64_t, 1> least = {-limit_ / 4};
    ranks_.all_reduce_max("agree on memory", least);
    engine_.table_budget = -least[0];
    runtime::agree(ranks_, "plan memory", [&] {
      runtime::ShardSize share = runtime::even_share(*grid_, ranks_.size());
      if (reuses()) share.rows -= prefix_->report().tokens / ranks_.size();
      check_memory(share, runtime::Merge::kScores);
      if (!options_.output.empty() && rank_ == RankId(0)) check_output();
      if (!options_.snapshot.empty()) check_snapshot();
      if (!options_.snapshot.empty() && rank_ == RankId(0)) {
        kvstore::check_snapshot_folder(options_.snapshot,
                                       kvstore::snapshot_bytes(problem(), policy(), options_.kv_format));
      }
    });
    layout_ = std::make_unique<partition::Layout>(partition::make_layout(*grid_, ranks_.size(), balance()));
    if (reuses()) leave_out_reused();
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

  void check_output() const {
    if (reuses()) {
      runtime::check_rest_output(output(), problem(), policy(), problem().tokens - prefix_->report().tokens);
    } else {
      runtime::check_output(output(), problem(), policy());
    }
  }

  void check_snapshot() const {
    kvstore::check_can_be_kept(problem(), policy());
    if (source_->caches_sinks())
      fail_bad_input("sink-positions = cache cannot be kept: a snapshot has no place for it");
  }

  void leave_out_reused() {
    const runtime::ReusedChunks reused = prefix_->chunks();
    *layout_ = partition::leave_out(std::move(*layout_), reused.chunks());
    engine_.load = [reused](ChunkId chunk, std::span<std::byte> blocks, std::span<float> record) {
      reused.load(chunk, blocks, record);
    };
  }

  bool on_gpu() const { return options_.backend == kernels::Backend::kCuda; }

  runtime::MemoryPlan plan_memory(const runtime::ShardSize& shard, runtime::Merge merge) const {
    const bool retrieval = source_->has_retrieval_queries();
    if (on_gpu()) return gpu_->plan(problem(), policy(), *grid_, shard, retrieval, merge);
    if (options_.backend == kernels::Backend::kReference) {
      runtime::MemoryPlan plan = runtime::plan_reference_memory(problem(), policy(), shard);
      if (source_->caches_sinks())
        plan.items.push_back({"sink queries", query_bytes(problem().tokens, sizeof(double))});
      return plan;
    }
    runtime::MemoryPlan plan = runtime::plan_memory(problem(), policy(), shard, retrieval, merge, engine_);
    if (source_->caches_sinks()) {
      plan.items.push_back({"sink queries", query_bytes(shard.rows, size_of(problem().dtype))});
    }
    plan.spill("blocks", options_.spill());
    if (prefix_) plan.items.push_back({"kept prefixes", prefix_->bytes()});
    if (!options_.snapshot.empty()) {
      plan.items.push_back(
          {"encoded blocks", runtime::snapshot_buffer_bytes(problem(), options_.kv_format, shard.chunks)});
    }
    if (const auto bytes = source_->calibration_bytes(threads_); bytes > 0)
      plan.items.push_back({"calibration", bytes});
    if (const auto bytes = runtime::landmark_query_bytes(problem(), options_.landmark_query, shard.chunks); bytes > 0) {
      plan.items.push_back({"landmark queries", bytes});
    }
    if (options_.recall) {
      plan.items.push_back({"recall", runtime::recall_bytes(problem(), policy(), ranks_.size(), *options_.recall)});
    }
    return plan;
  }
  std::int64_t query_bytes(std::int64_t rows, std::int64_t element) const {
    return rows * problem().heads * problem().head_dim * element;
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
      if (kvstore::can_hash_prefixes()) target.prefixes = kvstore::prefix_chains(problem(), ids).known();
    });
    engine_.keep = [this, target, prefix_hashes](const runtime::PrefillState& state) {
      const auto span = clock_.time("write");
      const auto written = runtime::write_prefill_snapshot(ranks_, target, problem(), policy(), state);
      snapshot_ = {options_.snapshot, written.generation,
                   target.format,     kvstore::snapshot_bytes(problem(), policy(), target.format),
                   prefix_hashes,     written.error};
      telemetry_.event(LogLevel::kInfo, "snapshot",
                       {{"folder", options_.snapshot}, {"generation", written.generation}});
    };
  }

  // The exact mass is that of the text, whose distances a cache does not keep.
  void check_recall() const {
    if (source_->caches_sinks()) fail_bad_input("recall does not go with sink-positions = cache; limit: text");
  }

  // Blocks are looked at before the engine lets go of them. The shard outlives the engine.
  void prepare_recall(const runtime::LayerShard& shard) {
    engine_.keep = [this, &shard, keep = std::move(engine_.keep)](const runtime::PrefillState& state) {
      if (keep) keep(state);
      const auto span = clock_.time("recall");
      recall_ = runtime::measure_recall(ranks_, problem(), *layout_, state, shard.queries(),
                                        {*options_.recall, options_.seed, threads_});
    };
  }

  // Collective: what an earlier run of this command has left.
  runtime::PrefillResult resume(const runtime::LayerShard& shard) {
    const auto span = clock_.time("load");
    checkpoint_ = std::make_unique<runtime::PrefillCheckpoint>(
        checkpoint_path(), problem(), policy(), *layout_, rank_, shard,
        std::map<std::string, std::string>{{"ringmark", RINGMARK_VERSION},
                                           {"balance", std::string(name_of(options_.balance))}});
    engine_.stop = [this] { return termination_.asked(); };
    runtime::PrefillCheckpoint::Found found = checkpoint_->find(ranks_);
    if (!found.refusal.empty() && rank_ == RankId(0)) {
      print_error(fmt::format("starts over: {}", found.refusal));
      telemetry_.event(LogLevel::kWarning, "starts_over", {{"why", found.refusal}});
    }
    std::array<std::int64_t, 1> attended = {found.begun.done.attended};
    ranks_.all_reduce_sum("rows to go on from", attended);
    tokens_resumed_ = attended[0];
    if (tokens_resumed_ > 0) telemetry_.event(LogLevel::kInfo, "resumed", {{"rows", tokens_resumed_}});
    return std::move(found.begun);
  }

  runtime::PrefillResult compute(runtime::LayerShard& shard, runtime::PrefillResult begun) {
    if (options_.backend == kernels::Backend::kReference) {
      transport_ = {nullptr, "none: the reference gathers the whole layer"};
      return runtime::reference_prefill(ranks_, problem(), policy(), *layout_, shard, threads_);
    }
    Progress shown(ranks_.rank(), options_.quiet);
    ObservedProgress progress(telemetry_.state(), shown);
    if (on_gpu()) return gpu_->prefill(problem(), policy(), *layout_, shard, engine_, progress, &telemetry_.trace());
    runtime::agree(ranks_, "choose the transport", [&] {
      const auto chunks = static_cast<std::int64_t>(layout_->chunks_of(rank_).size());
      transport_ = comm::choose_transport(ranks_, host_transport(options_.transport),
                                          runtime::exposed_bytes(problem(), policy(), chunks), options_.spill());
    });
    transport_ = telemetry_.observe(std::move(transport_));
    return runtime::prefill(ranks_, *transport_.transport, problem(), policy(), *layout_, shard, engine_, progress,
                            std::move(begun));
  }

  // Collective.
  [[noreturn]] void requeue(const runtime::PrefillResult& result) {
    checkpoint_->write(ranks_, result);
    telemetry_.event(LogLevel::kInfo, "checkpoint", {{"path", checkpoint_path()}, {"rows", result.done.attended}});
    std::array<std::int64_t, 2> rows = {result.done.windowed, result.done.attended};
    ranks_.all_reduce_sum("rows that are kept", rows);
    if (rank_ != RankId(0)) throw runtime::AgreedError(ExitCode::kRequeue, "");
    throw runtime::AgreedError(
        ExitCode::kRequeue,
        fmt::format("checkpointed: {} of {} rows, and the windows of {}, are kept in {}; run the same command again to "
                    "go on",
                    rows[1], problem().tokens, rows[0], checkpoint_path()));
  }

  void report(const runtime::PrefillResult& result) {
    const PrefillReport report = make_report(result);
    if (rank_ == RankId(0)) show_report(report, options_);
  }

  // Collective.
  PrefillReport make_report(const runtime::PrefillResult& result) {
    const std::vector<TokenId> tokens = layout_->tokens_of(rank_);
    PrefillReport report;
    report.problem = problem();
    report.policy_name = options_.policy.name;
    report.policy = policy();
    report.documents = static_cast<std::int64_t>(grid_->documents().size());
    report.ranks = ranks_.size();
    report.threads = threads_;
    report.instruction_set = options_.backend == kernels::Backend::kCpu ? name_of(kernels::cpu::active_isa()) : "fp64";
    report.transport = transport_.transport ? std::string(transport_.transport->name()) : "none";
    report.transport_reason = transport_.why;
    if (on_gpu()) describe_gpu(ranks_, gpu_->report(), report);
    report.merge = name_of(result.merge);
    report.balance = name_of(balance());
    report.backend = name_of(options_.backend);
    report.balance_max_over_mean = partition::measure_balance(*grid_, *layout_).max_over_mean;
    report.seconds = slowest(ranks_, stages(), std::array{&std::as_const(clock_), &result.clock});
    report.bytes_ring = ring_bytes(problem(), ranks_.size());
    std::array<std::int64_t, 3> sums = {static_cast<std::int64_t>(kernels::selection_digest(result.selection, tokens)),
                                        result.bytes_fetched, result.bytes_merged};
    ranks_.all_reduce_sum("report", sums);
    report.selection_digest = static_cast<std::uint64_t>(sums[0]);
    report.bytes_fetched = sums[1];
    report.bytes_merged = sums[2];
    report.union_ratio = runtime::union_ratios(ranks_, result.selection, tokens);
    report.positions = source_->positions();
    report.landmark_query = options_.landmark_query;
    report.calibrated = options_.calibrate;
    report.tokens_resumed = tokens_resumed_;
    report.snapshot = snapshot_;
    report.recall = recall_;
    if (prefix_) report.reuse = prefix_->report();
    const auto needles = source_->count_needles(ranks_, tokens, result.out);
    report.needles_planted = needles.planted;
    report.needles_recovered = needles.recovered;
    std::array<std::int64_t, 1> peak = {peak_memory()};
    ranks_.all_reduce_max("report", peak);
    report.peak_memory_bytes = peak[0];
    return report;
  }

  std::vector<std::string> stages() const {
    if (on_gpu()) {
      return {"load",   "store", "landmarks", "plan",  "fetch",  "window",
              "select", "score", "settle",    "exact", "attend", "write"};
    }
    std::vector<std::string> names = {"load", "landmarks", "plan", "fetch", "window", "select", "attend", "write"};
    if (options_.recall) names.emplace_back("recall");
    return names;
  }

  const PrefillOptions& options_;
  comm::Communicator& ranks_;
  Termination& termination_;
  Telemetry& telemetry_;
  RankId rank_;
  int threads_;
  std::int64_t limit_ = 0;  // bytes this rank may hold
  runtime::PrefillOptions engine_;
  std::unique_ptr<LayerSource> source_;
  std::unique_ptr<PrefixSource> prefix_;  // only with --reuse
  std::unique_ptr<partition::SequenceGrid> grid_;
  std::unique_ptr<partition::Layout> layout_;
  std::unique_ptr<GpuRank> gpu_;  // only with --backend cuda
  comm::ChosenTransport transport_;
  std::unique_ptr<runtime::PrefillCheckpoint> checkpoint_;  // where one can be kept
  std::int64_t tokens_resumed_ = 0;
  std::optional<SnapshotReport> snapshot_;
  std::optional<runtime::Recall> recall_;
  runtime::StageClock clock_;
};

void run_policy(const PrefillOptions& options, comm::Communicator& ranks, Termination& termination,
                Telemetry& telemetry) {
  if (options.dense) return run_dense(options, ranks, telemetry);
  if (options.dilated) return run_dilated(options, ranks, telemetry);
  if (options.logo) return run_logo(options, ranks, telemetry);
  if (options.nsa) return run_nsa(options, ranks, telemetry);
  if (options.compressive) return run_compressive(options, ranks, telemetry);
  PrefillCommand(options, ranks, termination, telemetry).run();
}

}  // namespace

int run_prefill(const std::vector<std::string>& arguments, const Environment& environment) {
  std::optional<PrefillOptions> options;
  try {
    options = parse_prefill_options(arguments, environment);
  } catch (const Error& error) {
    return refuse_options(error);
  }
  Telemetry telemetry(*options, "prefill", std::string(options->policy.name));
  return run_job(job_options(*options, options->backend, options->transport, telemetry),
                 [&](comm::Communicator& ranks, Termination& termination) {
                   telemetry.start(ranks);
                   run_policy(*options, ranks, termination, telemetry);
                   telemetry.finish(ranks);
                 });
}

}  // namespace ringmark::cluster
