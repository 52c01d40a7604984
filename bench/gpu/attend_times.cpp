#include "bench/gpu/attend_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "bench/gpu/device_layer.h"
#include "bench/gpu/roofline.h"
#include "bench/gpu/transfer.h"
#include "bench/gpu/union_selection.h"
#include "kernels/cuda/attend.h"

namespace ringmark::bench {
namespace {

using kernels::cuda::Path;
using ringmark::cuda::Buffer;

constexpr std::int64_t kCheckedRows = 48;
// Softmax weights are fp16: 2^-12 of values up to 5, and some room.
constexpr float kOutBound = 2e-3f;
constexpr float kLseBound = 1e-4f;

AttentionProblem problem_of(std::int64_t tokens, bool landmark_slots) {
  return {tokens, 32, 8, 128, 64, DType::kBfloat16, 1.0f / std::sqrt(128.0f), landmark_slots, {}};
}

class AttendBench {
 public:
  AttendBench(std::int64_t tokens, const AttentionPolicy& policy, bool landmark_slots, int repeats)
      : repeats_(repeats),
        layer_(problem_of(tokens, landmark_slots), policy),
        swizzled_(layer_, kernels::cuda::BlockOrder::kSwizzled),
        plain_(layer_, kernels::cuda::BlockOrder::kPlain),
        got_(layer_),
        want_(layer_) {
    for (const std::int64_t first : {tokens / 5, tokens / 2 - 17, tokens - kCheckedRows}) {
      checked_.push_back({first, first + kCheckedRows});
    }
    for (const RowRange& rows : checked_) attend_window(Path::kSimt, rows, want_);
  }

  const DeviceLayer& layer() const { return layer_; }
  std::vector<Path> families() const { return tensor_families(layer_.shape); }

  // By the window kernel: its time and what is wrong.
  KernelTime time_window(Path path) {
    KernelTime time;
    time.family = name_of(path);
    time.ms = time_on(layer_.stream, repeats_, [&] { attend_window(path, layer_.all(), got_); });
    time.wrong = first_difference(got_.out, want_.out, layer_.problem.head_dim, "out", kOutBound) +
                 first_difference(got_.lse, want_.lse, 1, "lse", kLseBound);
    return time;
  }

  // Makes the mixture weights of time_chosen from scores [rows, H, topk].
  void weigh(const std::vector<float>& scores) {
    scores_ = upload(scores, layer_.stream);
    window_weight_ = Buffer<float>(layer_.problem.tokens * layer_.problem.heads);
    attend_window(families().front(), layer_.all(), got_);
    weigh_chunks(layer_.shape, layer_.all(), scores_.data(), got_.lse.data(), window_weight_.data(), layer_.stream);
    layer_.stream.wait();
  }

  KernelTime time_chosen(Path path, const kernels::cuda::UnionPlan& plan, const std::int32_t* selection) {
    KernelTime time;
    time.family = name_of(path);
    // In place over and over: weights of the window are below 1, so numbers stay.
    time.ms = time_on(layer_.stream, repeats_, [&] { attend_chosen(path, layer_.all(), plan, selection, got_); });
    attend_window(path, layer_.all(), got_);
    attend_chosen(path, layer_.all(), plan, selection, got_);
    for (const RowRange& rows : checked_) {
      attend_window(Path::kSimt, rows, want_);
      attend_chosen(Path::kSimt, rows, {}, selection, want_);
    }
    time.wrong = first_difference(got_.out, want_.out, layer_.problem.head_dim, "out", kOutBound);
    return time;
  }

 private:
  struct Result {
    explicit Result(const DeviceLayer& layer)
        : out(layer.problem.tokens * layer.problem.heads * layer.problem.head_dim),
          lse(layer.problem.tokens * layer.problem.heads) {}
    Buffer<float> out, lse;
  };

  kernels::cuda::DeviceBlocks blocks(Path path) const { return path == Path::kSimt ? plain_.view() : swizzled_.view(); }
  void attend_window(Path path, RowRange rows, const Result& result) const {
    kernels::cuda::attend_window(path, layer_.shape, layer_.geometry(), blocks(path), layer_.q.data(), rows,
                                 result.out.data(), result.lse.data(), layer_.stream);
  }
  void attend_chosen(Path path, RowRange rows, const kernels::cuda::UnionPlan& plan, const std::int32_t* selection,
                     const Result& result) const {
    kernels::cuda::attend_chosen(path, layer_.shape, layer_.geometry(), blocks(path), layer_.q.data(), rows, plan,
                                 selection, scores_.data(), window_weight_.data(), result.out.data(), layer_.stream);
  }

  // Of the checked rows; `width` numbers a head.
  std::string first_difference(const Buffer<float>& got, const Buffer<float>& want, std::int64_t width,
                               const char* what, float bound) const {
    const std::int64_t of_row = layer_.problem.heads * width;
    for (const RowRange& rows : checked_) {
      const std::vector<float> a = download(got, rows.begin * of_row, rows.size() * of_row, layer_.stream);
      const std::vector<float> b = download(want, rows.begin * of_row, rows.size() * of_row, layer_.stream);
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::fabs(a[i] - b[i]) <= bound) continue;  // false for NaN
        const auto at = static_cast<std::int64_t>(i);
        return fmt::format("{} of row {} head {} channel {} is {}, not {}; ", what, rows.begin + at / of_row,
                           at % of_row / width, at % width, a[i], b[i]);
      }
    }
    return "";
  }

  int repeats_;
  DeviceLayer layer_;
  LayerBlocks swizzled_, plain_;
  Result got_, want_;
  std::vector<RowRange> checked_;
  Buffer<float> scores_, window_weight_;
};

// Anything that is no order: 4 to 8, about the lse of the window, and -inf where nothing is chosen. [rows, H, topk]
std::vector<float> scores_of(const DeviceLayer& layer, std::span<const std::int32_t> selection) {
  const std::int64_t heads = layer.problem.heads, topk = layer.shape.topk, group = layer.problem.group();
  std::vector<float> scores(static_cast<std::size_t>(layer.problem.tokens * heads * topk));
#pragma omp parallel for schedule(static)
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(scores.size()); ++at) {
    const std::int64_t pair = at / topk, kv_head = pair % heads / group;
    const std::int64_t slot = (pair / heads * layer.problem.kv_heads + kv_head) * topk + at % topk;
    const auto mixed = static_cast<std::uint32_t>(at) * 2654435761u;
    scores[static_cast<std::size_t>(at)] = selection[static_cast<std::size_t>(slot)] < 0
                                               ? -std::numeric_limits<float>::infinity()
                                               : 4.0f + static_cast<float>(mixed >> 8) * 0x1p-22f;
  }
  return scores;
}

// How many times a query's chunks a tile needs, and a half of one.
struct UnionRatio {
  double tile = 0.0, half = 0.0;

  UnionRatio(const DeviceLayer& layer, const kernels::cuda::UnionPlan& plan, std::int64_t items, double chosen) {
    std::vector<kernels::cuda::UnionItem> all(static_cast<std::size_t>(items));
    ringmark::cuda::check(
        cudaMemcpyAsync(all.data(), plan.items, all.size() * sizeof(all[0]), cudaMemcpyDeviceToHost, layer.stream),
        "copy the union plan");
    layer.stream.wait();
    std::int64_t halves = 0;
    for (const auto& item : all) halves += (item.members[0] != 0) + (item.members[1] != 0);
    tile = static_cast<double>(items) * plan.tile_queries / chosen;
    half = static_cast<double>(halves) * plan.tile_queries / 2.0 / chosen;
  }
};

AttendBench sparse_bench(const KernelOptions& options) {
  return {options.quick ? 8192 : 131072, {512, 16, 0, Scorer::kHils}, true, options.repeats};
}

}  // namespace

void time_dense_kernels(const KernelOptions& options, KernelTable& table) {
  const std::int64_t tokens = options.quick ? 4096 : 32768;
  AttendBench bench(tokens, {tokens, 0, 0, Scorer::kNone}, false, options.repeats);
  const AttentionProblem& p = bench.layer().problem;
  const auto n = static_cast<double>(tokens);
  const double pairs = static_cast<double>(p.heads) * n * (n + 1) / 2;
  for (const Path path : bench.families()) {
    KernelTime time = bench.time_window(path);
    time.kernel = "dense causal";
    time.input = fmt::format("{} tokens", tokens);
    time.work = 4.0 * static_cast<double>(p.head_dim) * pairs;
    time.ceiling = kTensorRate;
    table.add(time);
  }
}

void time_window_kernels(const KernelOptions& options, KernelTable& table) {
  AttendBench bench = sparse_bench(options);
  const AttentionProblem& p = bench.layer().problem;
  const Work work = count_work(bench.layer().grid, 0, p.tokens);
  for (const Path path : bench.families()) {
    KernelTime time = bench.time_window(path);
    time.kernel = "window of 512";
    time.input = fmt::format("{} tokens", p.tokens);
    time.work = 4.0 * static_cast<double>(p.head_dim * p.heads) * work.window_keys;
    time.ceiling = kTensorRate;
    table.add(time);
  }
}

void time_chosen_kernels(const KernelOptions& options, KernelTable& table) {
  AttendBench bench = sparse_bench(options);
  const DeviceLayer& layer = bench.layer();
  const AttentionProblem& p = layer.problem;
  const auto select = [&](double ratio) {
    return select_with_union(layer.grid, p.kv_heads, layer.shape.topk, 128 / p.group(), ratio);
  };
  bench.weigh(scores_of(layer, select(1.0)));  // a row chooses as many by any ratio
  kernels::cuda::UnionPlanner planner;
  for (const double ratio : {1.08, 1.30, 1.54, 2.0}) {
    const std::vector<std::int32_t> selection = select(ratio);
    const auto chosen = static_cast<double>(std::ranges::count_if(selection, [](auto chunk) { return chunk >= 0; }));
    const Buffer<std::int32_t> on_device = upload(selection, layer.stream);
    const auto plan = planner.plan(layer.shape, on_device.data(), layer.all(), layer.stream);
    const UnionRatio measured(layer, plan, planner.items(), chosen);
    for (const Path path : bench.families()) {
      KernelTime time = bench.time_chosen(path, plan, on_device.data());
      time.kernel = "chosen chunks";
      time.input =
          fmt::format("{} tokens, unions {:.2f} a tile, {:.2f} a half", p.tokens, measured.tile, measured.half);
      time.work = 4.0 * static_cast<double>(p.head_dim * 64 * p.group()) * chosen;
      time.ceiling = kTensorRate;
      table.add(time);
    }
  }
}

}  // namespace ringmark::bench
