#include "cluster/planning/compute_measurement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "cluster/planning/cost_model.h"
#include "cluster/prefill/gpu_rank.h"
#include "comm/block_transport.h"
#include "comm/thread_ranks.h"
#include "kernels/cpu/isa.h"
#include "kernels/landmarks.h"
#include "kvstore/landmark_table.h"
#include "runtime/planted_layer.h"
#include "runtime/prefill.h"

namespace ringmark::cluster {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The longest layer over these.
constexpr std::array<std::int64_t, 4> kSizes = {8, 4, 2, 1};

// Names of a backend's clock, by what the cost model calls a stage.
const std::map<std::string, std::vector<std::string>> cpu_stages = {{"landmarks", {"landmarks"}},
                                                                    {"window", {"window"}},
                                                                    {"score", {"select"}},
                                                                    {"plan", {"plan"}},
                                                                    {"attend", {"attend"}}};
const std::map<std::string, std::vector<std::string>> gpu_stages = {
    {"store", {"store"}},   {"landmarks", {"landmarks"}},
    {"window", {"window"}}, {"score", {"score", "settle", "exact", "select"}},
    {"plan", {"plan"}},     {"attend", {"attend"}}};

struct LayerRun {
  RankWork work;
  std::map<std::string, double> seconds;  // by stage
  double wall = 0;
};

class Measurement {
 public:
  explicit Measurement(const CalibrateOptions& options)
      : options_(options), alone_(comm::make_single_rank()), on_gpu_(options.backend == kernels::Backend::kCuda) {
    gpu_options_.backend = options.backend;
    if (on_gpu_) gpu_ = make_gpu_rank(*alone_, gpu_options_);
  }

  ComputeMeasurement run() {
    for (const AttentionPolicy& policy : policies()) {
      for (const std::int64_t part : kSizes) runs_.push_back(best_of(options_.tokens / part, policy));
    }
    runs_of_fit_ = runs_.size();
    if (!on_gpu_) take_store_apart();
    fit("store", &ComputeRates::store, [](const RankWork& w) { return w.chunk_bytes; });
    fit("landmarks", &ComputeRates::landmarks, [](const RankWork& w) { return w.chunk_bytes; });
    fit("window", &ComputeRates::window, [](const RankWork& w) { return w.window_flops; });
    measure_packing();
    // Keeping the best K costs a row more the larger K is: of one K, the middle one, which the first runs have.
    runs_of_fit_ = kSizes.size();
    fit("score", &ComputeRates::score, [](const RankWork& w) { return w.score_flops; });
    runs_of_fit_ = runs_.size();
    fit("plan", &ComputeRates::plan, [](const RankWork&) { return 0.0; });
    result_.rates.attends_unions = on_gpu_;
    fit("attend", &ComputeRates::attend,
        [this](const RankWork& w) { return on_gpu_ ? w.union_flops : w.attend_flops; });
    fit("rest", &ComputeRates::rest, [](const RankWork&) { return 0.0; });
    measure_dense();
    judge();
    result_.where = on_gpu_ ? gpu_->report().device : std::string(kernels::cpu::name_of(kernels::cpu::active_isa()));
    result_.gpu_memory = on_gpu_ ? gpu_->memory_limit() : 0;
    return std::move(result_);
  }

 private:
  // Window and choice vary apart from the rows, or a line could not tell a row's cost from a key's.
  std::vector<AttentionPolicy> policies() const {
    AttentionPolicy middle = options_.policy, narrow = middle, wide = middle;
    narrow.window = 0;
    narrow.topk = std::max<std::int64_t>(1, middle.topk / 4);
    wide.window = 4 * middle.window;
    wide.topk = std::min(kMaxTopk, 2 * middle.topk);
    return {middle, narrow, wide};
  }

  AttentionProblem problem_of(std::int64_t tokens) const {
    AttentionProblem problem = options_.problem;
    problem.tokens = tokens;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
    return problem;
  }

  // The quickest of the repeats counts, stage by stage: a shared machine only ever makes one slower.
  LayerRun best_of(std::int64_t tokens, const AttentionPolicy& policy) {
    const AttentionProblem problem = problem_of(tokens);
    const partition::SequenceGrid grid(problem, policy);
    const partition::Layout layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
    const runtime::PlantedLayer layer(problem, policy, {});
    LayerRun best;
    best.work = count_work(problem, policy, grid, layout, RankId(0), {});
    best.wall = std::numeric_limits<double>::infinity();
    for (std::int64_t repeat = 0; repeat <= options_.repeats; ++repeat) {
      runtime::LayerShard shard = layer.make_shard(layout, RankId(0), static_cast<int>(options_.threads));
      const auto start = Clock::now();
      const runtime::PrefillResult result = prefill(problem, policy, layout, shard);
      const double wall = seconds_since(start);
      if (repeat == 0) continue;  // warm-up
      double rest = wall;
      for (const auto& [stage, names] : on_gpu_ ? gpu_stages : cpu_stages) {
        double seconds = 0;
        for (const std::string& name : names) seconds += result.clock.seconds(name);
        rest -= seconds;
        const auto [found, is_new] = best.seconds.try_emplace(stage, seconds);
        found->second = std::min(found->second, seconds);
      }
      const auto [found, is_new] = best.seconds.try_emplace("rest", std::max(0.0, rest));
      found->second = std::min(found->second, std::max(0.0, rest));
      best.wall = std::min(best.wall, wall);
    }
    return best;
  }

  runtime::PrefillResult prefill(const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const partition::Layout& layout, runtime::LayerShard& shard) {
    runtime::SilentProgress progress;
    runtime::PrefillOptions engine;
    engine.threads = static_cast<int>(options_.threads);
    if (on_gpu_) {
      engine.fetch_budget = engine.table_budget = gpu_->memory_limit() / 4;
      return gpu_->prefill(problem, policy, layout, shard, engine, progress, nullptr);
    }
    const auto chosen = comm::choose_transport(*alone_, comm::TransportChoice::kAuto);
    return runtime::prefill(*alone_, *chosen.transport, problem, policy, layout, shard, engine, progress);
  }

  // The clock of a cpu has storing and landmarks as one; a layer without landmarks only stores.
  void take_store_apart() {
    AttentionPolicy none = options_.policy;
    none.scorer = Scorer::kNone;
    std::vector<StageSample> stores;
    for (const std::int64_t part : kSizes) {
      const LayerRun run = best_of(options_.tokens / part, none);
      stores.push_back({run.work.rows, run.work.chunk_bytes, run.seconds.at("landmarks")});
    }
    const StageRate store = fit_stage(stores).rate;
    for (LayerRun& run : runs_) {
      const double seconds = std::min(store.seconds(run.work.rows, run.work.chunk_bytes), run.seconds["landmarks"]);
      run.seconds["store"] = seconds;
      run.seconds["landmarks"] -= seconds;
    }
  }

  // A table of many records, as every rank makes of all: its share of what one rank scores is too small to fit.
  void measure_packing() {
    if (on_gpu_) {
      result_.rates.pack = find_profile("h200").compute.pack;  // a part of `score` on one GPU
      return;
    }
    constexpr std::int64_t kRecords = 8192;
    const auto shape = kernels::LandmarkShape::of(options_.problem, options_.policy.scorer);
    const std::vector<float> records(static_cast<std::size_t>(kRecords * shape.record_floats()), 1.0f);
    std::vector<ChunkId> chunks;
    for (std::int64_t c = 0; c < kRecords; ++c) chunks.emplace_back(c);
    double best = std::numeric_limits<double>::infinity();
    for (std::int64_t repeat = 0; repeat <= options_.repeats; ++repeat) {
      const auto start = Clock::now();
      const kernels::PackedLandmarks packed(shape, chunks, records);
      const double seconds = seconds_since(start);
      if (packed.panels() > 0) best = std::min(best, seconds);
    }
    result_.rates.pack.unit = best / static_cast<double>(kvstore::LandmarkTable::bytes_of(shape, kRecords));
    for (LayerRun& run : runs_) {
      run.seconds["score"] = std::max(0.0, run.seconds["score"] - result_.rates.pack.unit * run.work.table_bytes);
    }
  }

  void fit(const std::string& stage, StageRate ComputeRates::*rate,
           const std::function<double(const RankWork&)>& units) {
    std::vector<StageSample> samples;
    for (LayerRun& run : std::span(runs_).first(runs_of_fit_)) {
      samples.push_back({run.work.rows, units(run.work), run.seconds[stage]});
    }
    const StageFit fit = fit_stage(samples);
    result_.rates.*rate = fit.rate;
    result_.fits.push_back({stage, fit});
  }

  // Exact attention by the window kernel, as a window over everything.
  void measure_dense() {
    if (on_gpu_) {
      result_.rates.dense = find_profile("h200").compute.dense;
      return;
    }
    std::vector<StageSample> samples;
    for (const std::int64_t tokens : {2048, 4096, 8192}) {
      AttentionPolicy whole;
      whole.window = tokens;
      whole.scorer = Scorer::kNone;
      const LayerRun run = best_of(tokens, whole);
      samples.push_back({0.0, run.work.window_flops, run.seconds.at("window")});
    }
    const StageFit fit = fit_stage(samples);
    result_.rates.dense = fit.rate;
    result_.fits.push_back({"dense", fit});
  }

  void judge() {
    for (const LayerRun& run : std::span(runs_).first(kSizes.size())) {
      const double error = std::abs(predict(run.work, result_.rates).total() / run.wall - 1.0);
      result_.mean_error += error / static_cast<double>(kSizes.size());
      result_.worst_error = std::max(result_.worst_error, error);
    }
  }

  const CalibrateOptions& options_;
  std::unique_ptr<comm::Communicator> alone_;
  bool on_gpu_;
  PrefillOptions gpu_options_;
  std::unique_ptr<GpuRank> gpu_;
  std::vector<LayerRun> runs_;   // by policy, then by size
  std::size_t runs_of_fit_ = 0;  // the first so many
  ComputeMeasurement result_;
};

}  // namespace

ComputeMeasurement measure_compute(const CalibrateOptions& options) { return Measurement(options).run(); }

}  // namespace ringmark::cluster
