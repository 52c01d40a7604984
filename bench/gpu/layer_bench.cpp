// Prefill of one layer on one GPU, stage by stage, against the roofline and against exact causal attention of the same
// shape on the same GPU in the same run. Needles planted in the input must be found, or the benchmark fails.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "bench/gpu/dense_baseline.h"
#include "bench/gpu/planted_device.h"
#include "bench/gpu/roofline.h"
#include "bench/gpu/timing.h"
#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "kernels/cuda/selection.h"
#include "partition/layout.h"
#include "runtime/cuda/prefill.h"

namespace ringmark::bench {
namespace {

struct Options {
  std::vector<std::int64_t> tokens = {131072, 1048576};
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128, window = 512, topk = 16;
  runtime::PlantedOptions planted;
  int repeats = 5;
  std::string selection_file;  // of the first length, for the peers
  std::optional<kernels::cuda::Path> path;
  bool dense = true;
};

std::int64_t number(const char* text) { return std::strtoll(text, nullptr, 10); }

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-dense") {
      options.dense = false;
      continue;
    }
    if (i + 1 == argc) fail_bad_input(name + " needs a value");
    const char* value = argv[++i];
    if (name == "--tokens") {
      options.tokens.clear();
      for (const char* at = value; at != nullptr; at = std::strchr(at, ',')) {
        options.tokens.push_back(number(*at == ',' ? ++at : at));
      }
    } else if (name == "--topk") {
      options.topk = number(value);
    } else if (name == "--agreement") {
      options.planted.agreement = std::strtod(value, nullptr);
    } else if (name == "--topics") {
      options.planted.topics = number(value);
    } else if (name == "--repeats") {
      options.repeats = static_cast<int>(number(value));
    } else if (name == "--selection") {
      options.selection_file = value;
    } else if (name == "--kernels") {
      for (const auto path : {kernels::cuda::Path::kHopper, kernels::cuda::Path::kMma, kernels::cuda::Path::kSimt}) {
        if (std::string(value) == kernels::cuda::name_of(path)) options.path = path;
      }
      if (!options.path) fail_bad_input("--kernels takes hopper, mma or simt");
    } else {
      fail_bad_input("unknown option " + name +
                     "; there are --tokens N,N --topk K --agreement X --topics T --repeats R --selection FILE "
                     "--kernels NAME --no-dense");
    }
  }
  return options;
}

class LayerBench {
 public:
  LayerBench(const Options& options, std::int64_t tokens)
      : options_(options),
        communicator_(comm::make_single_rank()),
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
        layout_(partition::make_layout(grid_, 1, partition::Balance::kContiguous)),
        planted_(problem_, policy_, options.planted),
        tokens_(layout_.tokens_of(RankId(0))) {}

  bool run() {
    std::vector<std::pair<std::string, std::vector<double>>> stages;
    for (const char* name : {"store", "landmarks", "window", "score", "settle", "exact", "attend"})
      stages.push_back({name, {}});
    std::vector<double> choices, totals;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {  // the first one warms up
      const runtime::cuda::DevicePrefillResult result = run_once();
      if (repeat < 0) continue;
      const auto ms = [&](const std::string& name) { return result.clock.seconds(name) * 1e3; };
      double total = 0.0;
      for (auto& [name, values] : stages) {
        values.push_back(ms(name));
        total += values.back();
      }
      totals.push_back(total);
      choices.push_back(ms("score") + ms("settle") + ms("exact"));
    }
    print_table(stages, choices, totals);
    write_selection();
    return needles_found();
  }

 private:
  runtime::cuda::DevicePrefillResult run_once() {
    using ringmark::cuda::Buffer;
    const std::int64_t row_bytes = problem_.head_dim * size_of(problem_.dtype);
    shard_.rows = problem_.tokens;
    if (shard_.q.empty()) shard_.q = Buffer<std::byte>(problem_.tokens * problem_.heads * row_bytes);
    shard_.k = Buffer<std::byte>(problem_.tokens * problem_.kv_heads * row_bytes);
    shard_.v = Buffer<std::byte>(problem_.tokens * problem_.kv_heads * row_bytes);
    planted_.fill(tokens_, shard_.q.data(), shard_.k.data(), shard_.v.data(), workspace_.stream);
    const auto chosen = comm::cuda::choose_device_transport(*communicator_, comm::cuda::DeviceTransportChoice::kAuto);
    runtime::cuda::DevicePrefillOptions engine;
    engine.merge = runtime::Merge::kLandmarks;
    engine.path = options_.path;
    runtime::SilentProgress progress;
    result_ = runtime::cuda::prefill(*communicator_, *chosen.transport, problem_, policy_, layout_, shard_, nullptr,
                                     engine, workspace_, progress);
    return result_;
  }

  void print_table(const std::vector<std::pair<std::string, std::vector<double>>>& stages,
                   const std::vector<double>& choices, const std::vector<double>& totals) const {
    const Work work = count_work(grid_, 0, problem_.tokens);
    const double d = static_cast<double>(problem_.head_dim), heads = static_cast<double>(problem_.heads);
    const double rows = static_cast<double>(problem_.tokens), kv_heads = static_cast<double>(problem_.kv_heads);
    const double kv_bytes = rows * kv_heads * d * 2;
    const double chosen = static_cast<double>(result_.chosen) * static_cast<double>(problem_.group());
    struct Floor {
      double flops, bytes;
    };
    const std::vector<Floor> floors = {{0.0, 4 * kv_bytes},
                                       {0.0, kv_bytes},
                                       {4 * d * heads * work.window_keys, 0.0},
                                       {2 * d * heads * work.eligible_chunks, 0.0},
                                       {0.0, 0.0},
                                       {0.0, 0.0},
                                       {4 * d * 64 * chosen, 0.0}};
    fmt::print(
        "layer of {} tokens, H={} Hkv={} d={} S=64 W={} K={}, agreement {}, topics {}: {} kernels, {:.3f}% of "
        "{} choices settled exactly, union ratio {:.2f} at {} queries\n",
        problem_.tokens, problem_.heads, problem_.kv_heads, problem_.head_dim, policy_.window, policy_.topk,
        options_.planted.agreement, options_.planted.topics, kernels::cuda::name_of(result_.path),
        result_.pairs > 0 ? 100.0 * static_cast<double>(result_.exact_pairs) / static_cast<double>(result_.pairs) : 0.0,
        result_.pairs, result_.union_ratio(), result_.union_queries);
    fmt::print("{:<12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "stage", "ms", "min", "max", "TFLOP/s", "floor ms",
               "of floor");
    double floor_total = 0.0;
    for (std::size_t n = 0; n < stages.size(); ++n) {
      const Spread ms = spread_of(stages[n].second);
      const double floor = std::max(floors[n].flops / kTensorRate, floors[n].bytes / kCopyRate) * 1e3;
      if (n > 0) floor_total += floor;
      fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.1f}{:>12.3f}{:>11.0f}%\n", stages[n].first, ms.median, ms.low,
                 ms.high, floors[n].flops / (ms.median * 1e-3) * 1e-12, floor, 100.0 * floor / ms.median);
    }
    const Spread choice = spread_of(choices);  // score + settle + exact
    fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.1f}\n", "scoring+topK", choice.median, choice.low, choice.high,
               floors[3].flops / (choice.median * 1e-3) * 1e-12);
    const Spread total = spread_of(totals);
    fmt::print("{:<12}{:>12.3f}{:>12.3f}{:>12.3f}{:>12}{:>12.3f}{:>11.0f}%\n", "layer", total.median, total.low,
               total.high, "", floor_total, 100.0 * floor_total / total.median);
    if (options_.dense) print_dense(total.median);
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
    if (options_.selection_file.empty() || written_) return;
    std::vector<std::int32_t> chunks(static_cast<std::size_t>(problem_.tokens * problem_.kv_heads * policy_.topk));
    workspace_.selection.download(chunks.data(), static_cast<std::int64_t>(chunks.size()), workspace_.stream);
    workspace_.stream.wait();
    std::ofstream(options_.selection_file, std::ios::binary)
        .write(reinterpret_cast<const char*>(chunks.data()), static_cast<std::streamsize>(chunks.size() * 4));
    written_ = true;
  }

  bool needles_found() const {
    const std::int64_t width = problem_.heads * problem_.head_dim;
    std::vector<float> out(static_cast<std::size_t>(width));
    std::int64_t found = 0;
    const auto questions = planted_.questions(tokens_);
    for (const Question& question : questions) {
      workspace_.out.download(out.data(), width, workspace_.stream, question.row * width);
      workspace_.stream.wait();
      found += planted_.recovered(question.needle, out) ? 1 : 0;
    }
    fmt::print("needles     {} of {} found\n\n", found, questions.size());
    std::fflush(stdout);
    return found == static_cast<std::int64_t>(questions.size());
  }

  const Options& options_;
  std::unique_ptr<comm::Communicator> communicator_;
  AttentionProblem problem_;
  AttentionPolicy policy_;
  partition::SequenceGrid grid_;
  partition::Layout layout_;
  PlantedDevice planted_;
  std::vector<TokenId> tokens_;
  runtime::cuda::Workspace workspace_;
  runtime::cuda::DeviceShard shard_;
  runtime::cuda::DevicePrefillResult result_;
  bool written_ = false;
};

int run(int argc, char** argv) {
  Options options = read_options(argc, argv);
  const auto communicator = comm::make_single_rank();
  fmt::print("{}\n", comm::cuda::choose_device(*communicator, false).why);
  bool good = true;
  for (const std::int64_t tokens : options.tokens) {
    good = LayerBench(options, tokens).run() && good;
    options.selection_file.clear();
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ringmark::bench

int main(int argc, char** argv) {
  try {
    return ringmark::bench::run(argc, argv);
  } catch (const ringmark::Error& error) {
    fmt::print(stderr, "layer_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
