#include "cluster/decode/decode_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/decode/decode_backend.h"
#include "cluster/decode/decode_options.h"
#include "cluster/decode/decode_report.h"
#include "cluster/job/host.h"
#include "cluster/job/job.h"
#include "cluster/job/progress.h"
#include "cluster/job/stage_seconds.h"
#include "cluster/options/text_file.h"
#include "cluster/prefill/prefill_report.h"
#include "kvstore/snapshot.h"
#include "runtime/agreement.h"
#include "runtime/decode_output.h"
#include "runtime/kept_layer.h"
#include "runtime/memory_plan.h"
#include "runtime/steps_file.h"

namespace ringmark::cluster {
namespace {

constexpr std::int64_t kReadAtOnce = std::int64_t{8} << 20;  // bytes of the input a rank holds, if a step is less

class DecodeCommand {
 public:
  DecodeCommand(const DecodeOptions& options, comm::Communicator& ranks, Termination& termination, Telemetry& telemetry)
      : options_(options),
        ranks_(ranks),
        termination_(termination),
        telemetry_(telemetry),
        rank_(ranks.rank()),
        threads_(options.threads > 0 ? static_cast<int>(options.threads) : default_threads(ranks.host_ranks())) {}

  // From the start it can be told to stop: it then ends after a step, with its state kept.
  void run() {
    clock_.record_in(&telemetry_.trace());
    termination_.accept_requests();
    prepare();
    load();
    decode();
    keep();
    report();
    backend_->retire();
    if (stopped_) requeue();
  }

 private:
  // Everything that can be refused is refused here, before anything large is allocated.
  void prepare() {
    runtime::agree(ranks_, "open the snapshot",
                   [&] { snapshot_.emplace(kvstore::Snapshot::open(ranks_, options_.snapshot)); });
    runtime::agree(ranks_, "read the input", [&] {
      const kvstore::SnapshotManifest& kept = snapshot_->manifest();
      steps_ = std::make_unique<runtime::StepsFile>(options_.input, kept, options_.skip);
      shape_ = runtime::grown_shape(kept, steps_->final_lengths());
      shape_.format = options_.kv_format.value_or(kept.format);
      output_ = std::make_unique<runtime::DecodeOutput>(options_.output, shape_.problem, shape_.policy, *steps_);
    });
    runtime::agree(ranks_, "choose the backend", [&] {
      backend_ = options_.backend == kernels::Backend::kCuda ? make_gpu_decode(ranks_, options_, telemetry_)
                                                             : make_host_decode(ranks_, options_, threads_, telemetry_);
    });
    runtime::agree(ranks_, "plan memory", [&] {
      check_memory();
      if (rank_ != RankId(0)) return;
      if (!options_.output.empty()) output_->check();
      if (options_.save) {
        kvstore::check_snapshot_folder(options_.snapshot,
                                       kvstore::snapshot_bytes(shape_.problem, shape_.policy, shape_.format));
      }
    });
  }

  std::int64_t row_bytes() const {
    const AttentionProblem& problem = shape_.problem;
    const std::int64_t queries = problem.heads * (steps_->has_retrieval_queries() ? 2 : 1);
    return (queries + 2 * problem.kv_heads) * problem.head_dim * size_of(problem.dtype);
  }
  // Whole steps.
  std::int64_t rows_read_at_once() const {
    return std::max<std::int64_t>(1, kReadAtOnce / (row_bytes() * options_.rows)) * options_.rows;
  }

  // What the backend keeps is where it computes; the input and the results pass through host memory.
  void check_memory() const {
    const std::int64_t output = options_.output.empty() ? 0 : output_->bytes() / ranks_.size();
    const std::int64_t rows = std::min(rows_read_at_once(), steps_->rows());
    const std::vector<runtime::MemoryItem> passing = {{"rows of the input", rows * row_bytes()}, {"results", output}};
    runtime::MemoryPlan plan = backend_->plan(shape_);
    if (options_.backend == kernels::Backend::kCpu) {
      plan.items.insert(plan.items.end(), passing.begin(), passing.end());
    } else {
      runtime::check_memory({passing}, available_memory() / ranks_.host_ranks(), rank_);
    }
    runtime::check_memory(plan, options_.memory_bytes().value_or(backend_->memory_limit()), rank_);
  }

  void load() {
    const auto span = clock_.time("load");
    backend_->open(shape_);
    backend_->engine().load(*snapshot_);
    if (!options_.output.empty()) output_->resume(ranks_);
  }

  void decode() {
    Progress shown(ranks_.rank(), options_.quiet);
    ObservedProgress progress(telemetry_.state(), shown);
    next_row_ = steps_->first_new();
    progress.begin("decode", steps_->rows() - next_row_);
    while (next_row_ < steps_->rows() && !stopped_) {
      const RowRange rows{next_row_, std::min(steps_->rows(), next_row_ + rows_read_at_once())};
      std::optional<runtime::LayerShard> read;
      {
        const auto span = clock_.time("read");
        runtime::agree(ranks_, "read the input", [&] { read.emplace(steps_->load(rows)); });
      }
      decode_rows(rows, *read, progress);
    }
    progress.end();
  }

  void decode_rows(RowRange rows, const runtime::LayerShard& read, runtime::ProgressSink& progress) {
    const auto span = clock_.time("decode");
    const runtime::NewTokens all = steps_->new_tokens(rows, read);
    while (next_row_ < rows.end && !stopped_) {
      const comm::EnterStep entered("decode step", steps_done_);
      const std::int64_t end = std::min(rows.end, next_row_ + options_.rows);
      const runtime::DecodeStep step =
          backend_->engine().step(all.slice(next_row_ - rows.begin, end - rows.begin), termination_.asked());
      ++steps_done_;
      digest_ += kernels::selection_digest(step.selection, step.tokens);
      traffic_ += step.traffic;
      if (!options_.output.empty()) output_->add(next_row_, step);
      next_row_ = end;
      stopped_ = step.stop && next_row_ < steps_->rows();
      progress.advance(next_row_ - steps_->first_new());
    }
  }

  // The results first: a job that ends in between decodes the same rows again.
  void keep() {
    const auto span = clock_.time("write");
    if (!options_.output.empty() && stopped_) output_->write_partial(ranks_, next_row_);
    if (!options_.output.empty() && !stopped_) output_->write(ranks_);
    const bool grown = next_row_ > steps_->first_new();
    if (!stopped_ && !(options_.save && grown)) return;
    runtime::agree(ranks_, "write the snapshot",
                   [&] { saved_ = kvstore::write_snapshot(ranks_, options_.snapshot, backend_->engine().contents()); });
    telemetry_.event(LogLevel::kInfo, stopped_ ? "checkpoint" : "snapshot",
                     {{"folder", options_.snapshot}, {"generation", *saved_}, {"rows", next_row_}});
  }

  void report() {
    const DecodeReport report = make_report();
    if (rank_ != RankId(0)) return;
    fmt::print("{}", report_table(report));
    if (options_.digest) fmt::print("selection_digest {}\n", digest_text(report.selection_digest));
    std::fflush(stdout);
    if (!options_.json.empty()) write_text_file(options_.json, report_json(report));
  }

  // Collective.
  DecodeReport make_report() {
    DecodeReport report;
    const runtime::KeptSequences& sequences = backend_->engine().sequences();
    report.problem = sequences.kept_problem(shape_.problem);
    report.policy = shape_.policy;
    report.format = shape_.format;
    report.snapshot = options_.snapshot;
    report.generation_opened = snapshot_->manifest().generation;
    report.generation_saved = saved_;
    report.sequences = sequences.count();
    report.rows_of_file = steps_->rows();
    report.rows_skipped = steps_->first_new();
    report.rows_decoded = next_row_ - steps_->first_new();
    report.steps = steps_done_;
    report.ranks = ranks_.size();
    report.threads = threads_;
    report.backend = name_of(options_.backend);
    report.of_backend = backend_->report();
    report.selection_digest = digest_;
    const std::array<std::string, 7> stages = {"load", "read", "append", "window", "select", "attend", "write"};
    report.seconds = slowest(ranks_, stages, std::array{&std::as_const(clock_), &backend_->engine().clock()});
    std::array<double, 1> seconds = {clock_.seconds("decode")};
    ranks_.all_reduce_max("report", seconds);
    report.decode_seconds = seconds[0];
    std::array<std::int64_t, 7> sums = {traffic_.bytes_pulled,   traffic_.bytes_pushed,  traffic_.bytes_gathered,
                                        traffic_.bytes_of_plans, traffic_.blocks_pulled, traffic_.blocks_pushed,
                                        traffic_.cache_hits};
    ranks_.all_reduce_sum("report", sums);
    report.traffic = {.bytes_pulled = sums[0],
                      .bytes_pushed = sums[1],
                      .bytes_gathered = sums[2],
                      .bytes_of_plans = sums[3],
                      .blocks_pulled = sums[4],
                      .blocks_pushed = sums[5],
                      .cache_hits = sums[6]};
    std::array<std::int64_t, 1> peak = {peak_memory()};
    ranks_.all_reduce_max("report", peak);
    report.peak_memory_bytes = peak[0];
    return report;
  }

  [[noreturn]] void requeue() const {
    if (rank_ != RankId(0)) throw runtime::AgreedError(ExitCode::kRequeue, "");
    const std::string how =
        steps_->has_positions() ? "run the same command again" : fmt::format("run it again with --skip {}", next_row_);
    throw runtime::AgreedError(ExitCode::kRequeue,
                               fmt::format("checkpointed: {} of {} rows are kept in generation {} of {}; {} to go on",
                                           next_row_, steps_->rows(), *saved_, options_.snapshot, how));
  }

  const DecodeOptions& options_;
  comm::Communicator& ranks_;
  Termination& termination_;
  Telemetry& telemetry_;
  RankId rank_;
  int threads_;
  std::optional<kvstore::Snapshot> snapshot_;
  std::unique_ptr<runtime::StepsFile> steps_;
  runtime::KeptShape shape_;
  std::unique_ptr<runtime::DecodeOutput> output_;
  std::unique_ptr<DecodeBackend> backend_;
  std::int64_t steps_done_ = 0;
  runtime::StageClock clock_;
  std::int64_t next_row_ = 0;  // of the input
  bool stopped_ = false;       // on request, with rows left
  std::uint64_t digest_ = 0;   // of all rows: every rank knows every choice
  runtime::DecodeTraffic traffic_;
  std::optional<std::uint64_t> saved_;
};

}  // namespace

int run_decode(const std::vector<std::string>& arguments, const Environment& environment) {
  std::optional<DecodeOptions> options;
  try {
    options = parse_decode_options(arguments, environment);
  } catch (const Error& error) {
    return refuse_options(error);
  }
  Telemetry telemetry(*options, "decode", "");
  return run_job(job_options(*options, options->backend, options->transport, telemetry),
                 [&](comm::Communicator& ranks, Termination& termination) {
                   telemetry.start(ranks);
                   DecodeCommand(*options, ranks, termination, telemetry).run();
                   telemetry.finish(ranks);
                 });
}

}  // namespace ringmark::cluster
