// Prefill of one layer, stage by stage, against the roofline and against exact causal attention of the same shape on
// the same GPU in the same run. Under mpirun on as many GPUs as ranks; --alone measures one of them by itself first,
// and both must choose the same. Needles planted in the input must be found, or the benchmark fails.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bench/gpu/dense_baseline.h"
#include "bench/gpu/layer_options.h"
#include "bench/gpu/planted_device.h"
#include "bench/gpu/ranks.h"
#include "bench/gpu/roofline.h"
#include "bench/gpu/timing.h"
#include "comm/cuda/choose_device.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/cuda/selection.h"
#include "partition/layout.h"
#include "runtime/cuda/prefill.h"
#include "runtime/trace.h"

namespace ringmark::bench {
namespace {

constexpr std::string_view kComputeLane = "gpu compute";
constexpr std::string_view kFetchLane = "gpu fetch";

// Stages of the engine's clock, then what is made of them.
constexpr std::array<const char*, 13> kRows = {"store", "landmarks", "window",       "score", "settle",
                                               "exact", "attend",    "scoring+topK", "layer", "plan",
                                               "fetch", "exposed",   "wall"};
enum Row : std::size_t { kScore = 3, kStages = 7, kChoice = 7, kLayer, kPlan, kFetch, kExposed, kWall };
using Milliseconds = std::array<double, kRows.size()>;

struct LayerTimes {
  Milliseconds ms{};  // medians
  std::uint64_t digest = 0;
  bool right = false;
};

class LayerBench {
 public:
  LayerBench(const LayerOptions& options, std::int64_t tokens, comm::Communicator& communicator)
      : options_(options),
        communicator_(communicator),
        transport_(comm::cuda::choose_device_transport(communicator, options.transport)),
        problem_{tokens,
                 options.heads,
                 options.kv_heads,
                 options.head_dim,
                 64,
                 DType::kBfloat16,
                 1.0f / std::sqrt(static_cast<float>(options.head_dim)),
                 true,
                 {}},
        policy_{options.window, options.topk, 0, Scorer::kHils},
        grid_(problem_, policy_),
        layout_(partition::make_layout(grid_, communicator.size(), partition::Balance::kZigzag)),
        planted_(problem_, policy_, options.planted),
        tokens_(layout_.tokens_of(RankId(communicator.rank()))) {}

  // Collective.
  LayerTimes run() {
    std::array<std::vector<double>, kRows.size()> times;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {  // the first one warms up
      const Milliseconds ms = run_once();
      if (repeat < 0) continue;
      for (std::size_t row = 0; row < ms.size(); ++row) times[row].push_back(ms[row]);
    }
    std::array<Spread, kRows.size()> spreads;
    LayerTimes result;
    for (std::size_t row = 0; row < spreads.size(); ++row) {
      spreads[row] = spread_of(times[row]);
      result.ms[row] = spreads[row].median;
    }
    sum_counts();
    result.digest = digest();
    if (first()) print_table(spreads);
    if (first() && ranks() > 1) print_transfers(spreads);
    if (ranks() == 1 && options_.dense) print_dense(result.ms[kLayer]);
    write_selection();
    result.right = needles_found();
    return result;
  }

 private:
  int ranks() const { return communicator_.size(); }
  bool first() const { return communicator_.rank() == 0; }
  auto rows() const { return static_cast<std::int64_t>(tokens_.size()); }

  // Of the slowest rank, row by row.
  Milliseconds run_once() {
    using ringmark::cuda::Buffer;
    const std::int64_t row_bytes = problem_.head_dim * size_of(problem_.dtype);
    shard_.rows = rows();
    if (shard_.q.empty()) shard_.q = Buffer<std::byte>(rows() * problem_.heads * row_bytes);
    shard_.k = Buffer<std::byte>(rows() * problem_.kv_heads * row_bytes);
    shard_.v = Buffer<std::byte>(rows() * problem_.kv_heads * row_bytes);
    planted_.fill(tokens_, shard_.q.data(), shard_.k.data(), shard_.v.data(), workspace_.stream);
    runtime::Trace trace;
    runtime::cuda::DevicePrefillOptions engine;
    engine.merge = runtime::Merge::kLandmarks;
    engine.fetch = options_.fetch;
    engine.path = options_.path;
    engine.trace = &trace;
    runtime::SilentProgress progress;
    communicator_.barrier("start of the layer");
    const auto start = std::chrono::steady_clock::now();
    result_ = runtime::cuda::prefill(communicator_, *transport_.transport, problem_, policy_, layout_, shard_, nullptr,
                                     engine, workspace_, progress);
    Milliseconds ms{};
    ms[kWall] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      ms[stage] = result_.clock.seconds(kRows[stage]) * 1e3;
      ms[kLayer] += ms[stage];
    }
    ms[kChoice] = ms[kScore] + ms[kScore + 1] + ms[kScore + 2];
    ms[kPlan] = result_.clock.seconds(kRows[kPlan]) * 1e3;
    ms[kFetch] = runtime::uncovered_us(trace, kFetchLane, "") * 1e-3;
    ms[kExposed] = runtime::uncovered_us(trace, kFetchLane, kComputeLane) * 1e-3;
    communicator_.all_reduce_max("the slowest rank", ms);
    return ms;
  }

  // The result's counts become those of all ranks.
  void sum_counts() {
    std::array<std::int64_t, 6> sums = {result_.pairs,  result_.exact_pairs,   result_.union_items,
                                        result_.chosen, result_.bytes_fetched, result_.bytes_merged};
    communicator_.all_reduce_sum("add up", sums);
    std::tie(result_.pairs, result_.exact_pairs, result_.union_items, result_.chosen, result_.bytes_fetched,
             result_.bytes_merged) = std::tuple_cat(sums);
  }

  std::uint64_t digest() {
    using ringmark::cuda::Buffer;
    std::vector<std::int64_t> ids;
    for (const TokenId token : tokens_) ids.push_back(token.value());
    Buffer<std::int64_t> device_ids(rows());
    Buffer<unsigned long long> sum(1);
    device_ids.upload(ids.data(), rows(), workspace_.stream);
    sum.fill_bytes(0, workspace_.stream);
    kernels::cuda::add_selection_digest(kernels::cuda::LayerShape::of(problem_, policy_, grid_),
                                        workspace_.selection.data(), device_ids.data(), rows(), sum.data(),
                                        workspace_.stream);
    unsigned long long of_rank = 0;
    sum.download(&of_rank, 1, workspace_.stream);
    workspace_.stream.wait();
    std::array<std::int64_t, 1> all = {static_cast<std::int64_t>(of_rank)};
    communicator_.all_reduce_sum("add up the digest", all);
    return static_cast<std::uint64_t>(all[0]);
  }

  // Operations and floors are those of one rank of a balanced layout.
  void print_table(const std::array<Spread, kRows.size()>& times) const {
    const Work work = count_work(grid_, 0, problem_.tokens);
    const double share = 1.0 / ranks();
    const double d = static_cast<double>(problem_.head_dim), heads = share * static_cast<double>(problem_.heads);
    const double kv_bytes =
        share * static_cast<double>(problem_.tokens) * static_cast<double>(problem_.kv_heads) * d * 2;
    const double chosen = share * static_cast<double>(result_.chosen) * static_cast<double>(problem_.group());
    struct Floor {
      double flops, bytes;
    };
    const std::array<Floor, kStages> floors = {{{0.0, 4 * kv_bytes},
                                                {0.0, kv_bytes},
                                                {4 * d * heads * work.window_keys, 0.0},
                                                {2 * d * heads * work.eligible_chunks, 0.0},
                                                {0.0, 0.0},
                                                {0.0, 0.0},
                                                {4 * d * 64 * chosen, 0.0}}};
    fmt::print(
        "layer of {} tokens on {} GPU{}, H={} Hkv={} d={} S=64 W={} K={}, agreement {}, topics {}: {} kernels, {:.3f}% "
        "of {} choices settled exactly, union ratio {:.2f} at {} queries\n",
        problem_.tokens, ranks(), ranks() == 1 ? "" : "s, each", problem_.heads, problem_.kv_heads, problem_.head_dim,
        policy_.window, policy_.topk, options_.planted.agreement, options_.planted.topics,
        kernels::cuda::name_of(result_.path),
        result_.pairs > 0 ? 100.0 * static_cast<double>(result_.exact_pairs) / static_cast<double>(result_.pairs) : 0.0,
        result_.pairs, result_.union_ratio(), result_.union_queries);
    fmt::print("{:<12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "stage", "ms", "min", "max", "TFLOP/s", "floor ms",
               "of floor");
    double floor_total = 0.0;
    for (std::size_t n = 0; n < kStages; ++n) {
      const double floor = std::max(floors[n].flops / kTensorRate, floors[n].bytes / kCopyRate) * 1e3;
      if (n > 0) floor_total += floor;
      fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.1f}{:>12.3f}{:>11.0f}%\n", kRows[n], times[n].median,
                 times[n].low, times[n].high, floors[n].flops / (times[n].median * 1e-3) * 1e-12, floor,
                 100.0 * floor / times[n].median);
    }
    const Spread& choice = times[kChoice];  // score + settle + exact
    fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.1f}\n", kRows[kChoice], choice.median, choice.low, choice.high,
               floors[kScore].flops / (choice.median * 1e-3) * 1e-12);
    const Spread& total = times[kLayer];
    fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12}{:>12.3f}{:>11.0f}%\n", kRows[kLayer], total.median, total.low,
               total.high, "", floor_total, 100.0 * floor_total / total.median);
    for (const std::size_t row : {kPlan, kWall}) {
      fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}\n", kRows[row], times[row].median, times[row].low, times[row].high);
    }
    std::fflush(stdout);
  }

  void print_transfers(const std::array<Spread, kRows.size()>& times) const {
    const std::int64_t ring = (ranks() - 1) * problem_.tokens * problem_.kv_heads * problem_.head_dim * 2 *
                              static_cast<std::int64_t>(size_of(problem_.dtype));
    const double fetched = static_cast<double>(result_.bytes_fetched);
    for (const std::size_t row : {kFetch, kExposed}) {
      fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}  {:.1f}% of the wall time\n", kRows[row], times[row].median,
                 times[row].low, times[row].high, 100.0 * times[row].median / times[kWall].median);
    }
    fmt::print("fetch       {}\n", result_.fetch.why);
    fmt::print("bytes       {:.1f} MiB fetched of a ring's {:.1f} MiB ({:.1f}%), {:.1f} MiB of landmarks\n",
               fetched / (1 << 20), static_cast<double>(ring) / (1 << 20), 100.0 * fetched / static_cast<double>(ring),
               static_cast<double>(result_.bytes_merged) / (1 << 20));
    fmt::print("transport   {}\n", transport_.why);
    std::fflush(stdout);
  }

  void print_dense(double layer_ms) const {
    for (const DenseTime& dense : time_dense(problem_, options_.repeats)) {
      fmt::print("{:<30}{:>12.2f} ms {:>8.1f} TFLOP/s  the layer is {:.1f} times faster{}\n", dense.name,
                 dense.milliseconds, dense.flops / (dense.milliseconds * 1e-3) * 1e-12, dense.milliseconds / layer_ms,
                 dense.note);
    }
  }

  void write_selection() {
    if (options_.selection_file.empty() || ranks() > 1) return;
    std::vector<std::int32_t> chunks(static_cast<std::size_t>(problem_.tokens * problem_.kv_heads * policy_.topk));
    workspace_.selection.download(chunks.data(), static_cast<std::int64_t>(chunks.size()), workspace_.stream);
    workspace_.stream.wait();
    std::ofstream(options_.selection_file, std::ios::binary)
        .write(reinterpret_cast<const char*>(chunks.data()), static_cast<std::streamsize>(chunks.size() * 4));
  }

  // Collective.
  bool needles_found() const {
    const std::int64_t width = problem_.heads * problem_.head_dim;
    std::vector<float> out(static_cast<std::size_t>(width));
    std::array<std::int64_t, 2> found = {0, 0};  // of so many
    for (const Question& question : planted_.questions(tokens_)) {
      workspace_.out.download(out.data(), width, workspace_.stream, question.row * width);
      workspace_.stream.wait();
      found[0] += planted_.recovered(question.needle, out) ? 1 : 0;
      ++found[1];
    }
    communicator_.all_reduce_sum("add up the needles", found);
    if (first()) fmt::print("needles     {} of {} found\n\n", found[0], found[1]);
    std::fflush(stdout);
    return found[0] == found[1] && found[1] > 0;
  }

  const LayerOptions& options_;
  comm::Communicator& communicator_;
  comm::cuda::ChosenDeviceTransport transport_;
  AttentionProblem problem_;
  AttentionPolicy policy_;
  partition::SequenceGrid grid_;
  partition::Layout layout_;
  PlantedDevice planted_;
  std::vector<TokenId> tokens_;
  runtime::cuda::Workspace workspace_;
  runtime::cuda::DeviceShard shard_;
  runtime::cuda::DevicePrefillResult result_;
};

// Rank 0 by itself while the others wait; its times are rank 0's alone to know.
LayerTimes run_alone(const LayerOptions& options, std::int64_t tokens, comm::Communicator& ranks) {
  constexpr std::chrono::minutes kLongest(5);
  LayerTimes alone;
  if (ranks.rank() == 0) {
    LayerOptions local = options;
    local.transport = comm::cuda::DeviceTransportChoice::kAuto;
    alone = LayerBench(local, tokens, *comm::make_single_rank()).run();
  }
  ranks.barrier("wait for rank 0, which measures one GPU", kLongest);
  return alone;
}

// Whether both chose the same.
bool compare(const LayerTimes& alone, const LayerTimes& all, int ranks) {
  const bool same = alone.digest == all.digest;
  fmt::print("{} GPUs      {:.2f} times one (wall), {:.2f} times by the stages; digest {:016x}, {}\n\n", ranks,
             alone.ms[kWall] / all.ms[kWall], alone.ms[kLayer] / all.ms[kLayer], all.digest,
             same ? "the same" : fmt::format("but {:016x} on one", alone.digest));
  std::fflush(stdout);
  return same;
}

// Collective; the same on all ranks.
bool run(LayerOptions options, comm::Communicator& ranks) {
  const comm::cuda::ChosenDevice device = comm::cuda::choose_device(ranks, options.share);
  if (ranks.rank() == 0) fmt::print("{}\n", device.why);
  bool right = true;
  for (const std::int64_t tokens : options.tokens) {
    LayerTimes alone;
    if (options.alone) alone = run_alone(options, tokens, ranks);
    const LayerTimes all = LayerBench(options, tokens, ranks).run();
    right = all.right && right;
    if (options.alone && ranks.rank() == 0) right = compare(alone, all, ranks.size()) && alone.right && right;
    options.selection_file.clear();
  }
  std::array<std::int64_t, 1> wrong = {right ? 0 : 1};
  ranks.all_reduce_max("collect the verdicts", wrong);
  return wrong[0] == 0;
}

}  // namespace
}  // namespace ringmark::bench

int main(int argc, char** argv) {
  using namespace ringmark;
  return bench::run_on_ranks("layer_bench", [&](comm::Communicator& ranks) {
    return bench::run(bench::read_layer_options(argc, argv), ranks);
  });
}
