// What a share of globally attending rows costs under LoGo, against dense attention of all rows, in one run: the cost
// is to be the share. The window, which every row pays, is named apart. usage: logo_bench [threads]
//
// Seconds are those of the processors, since a shared host disturbs the others. Every selected row must have the lse of
// the dense run bit for bit, and every needle must be found. A wrong answer fails the benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "runtime/dense/prefill.h"
#include "runtime/logo/prefill.h"
#include "runtime/planted_layer.h"

namespace ringmark {
namespace {

constexpr std::int64_t kTokens = 65536;
constexpr std::int64_t kWindow = 128;
constexpr int kRounds = 3;  // all of them in turns, the fastest counts: a shared host disturbs

AttentionProblem problem_of_bench() {
  AttentionProblem problem;
  problem.tokens = kTokens;
  problem.heads = 2;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  problem.validate();
  return problem;
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Run {
  double seconds = 0.0;  // of the processors
  std::vector<float> out = {}, lse = {};
  std::int64_t selected = 0;
  bool right = false;
};

class Bench {
 public:
  explicit Bench(int threads)
      : threads_(threads),
        ranks_(comm::make_single_rank()),
        problem_(problem_of_bench()),
        layer_(problem_, {}, {}),
        grid_(problem_, runtime::dense::whole_window(problem_)),
        layout_(partition::make_layout(grid_, 1, partition::Balance::kContiguous)),
        tokens_(layout_.tokens_of(RankId(0))),
        gates_(layer_.gates(tokens_)) {}

  Run dense() {
    runtime::LayerShard shard = layer_.make_shard(layout_, RankId(0), threads_);
    const double start = processor_seconds();
    auto result = runtime::dense::prefill(*ranks_, problem_, grid_, layout_, shard, dense_options(), progress_);
    Run run{processor_seconds() - start, std::move(result.out), std::move(result.lse)};
    run.right = finds_needles(run.out);
    return run;
  }

  // `of_dense`: what selected rows must agree with.
  Run logo(double threshold, const Run& of_dense) {
    runtime::LayerShard shard = layer_.make_shard(layout_, RankId(0), threads_);
    const auto chosen = comm::choose_transport(*ranks_, comm::TransportChoice::kAuto);
    const double start = processor_seconds();
    auto result = runtime::logo::prefill(*ranks_, *chosen.transport, problem_, exact_window(kWindow), layout_, shard,
                                         gates_, {dense_options(), threshold, {}}, progress_);
    Run run{processor_seconds() - start, std::move(result.out), std::move(result.lse), result.selected};
    run.right = threshold >= 1.0 || finds_needles(run.out);
    for (std::size_t row = 0; row < gates_.size(); ++row) {
      if (!(gates_[row] > threshold)) continue;
      const auto heads = static_cast<std::size_t>(problem_.heads);
      run.right = run.right && std::equal(run.lse.begin() + static_cast<std::ptrdiff_t>(row * heads),
                                          run.lse.begin() + static_cast<std::ptrdiff_t>((row + 1) * heads),
                                          of_dense.lse.begin() + static_cast<std::ptrdiff_t>(row * heads));
    }
    return run;
  }

 private:
  runtime::dense::Options dense_options() const {
    return {.strategy = runtime::dense::Strategy::kAllGather, .threads = threads_};
  }
  bool finds_needles(const std::vector<float>& out) const {
    const auto needles = layer_.count_recovered(*ranks_, tokens_, out);
    return needles.planted > 0 && needles.recovered == needles.planted;
  }

  int threads_;
  std::unique_ptr<comm::Communicator> ranks_;
  AttentionProblem problem_;
  runtime::PlantedLayer layer_;
  partition::SequenceGrid grid_;
  partition::Layout layout_;
  std::vector<TokenId> tokens_;
  std::vector<float> gates_;
  runtime::SilentProgress progress_;
};

// The fastest of the rounds so far, and whether all answers were right.
void keep_fastest(Run& best, Run run) {
  const bool right = best.right && run.right;
  if (run.seconds < best.seconds) best = std::move(run);
  best.right = right;
}

struct Runs {
  Run dense, window, quarter, half;  // window: no gate is above the threshold
};

Runs run_round(Bench& bench) {
  Runs runs;
  runs.dense = bench.dense();
  runs.window = bench.logo(1.0, runs.dense);
  runs.quarter = bench.logo(0.75, runs.dense);
  runs.half = bench.logo(0.5, runs.dense);
  return runs;
}

bool run(int threads) {
  Bench bench(threads);
  Runs best = run_round(bench);
  for (int round = 1; round < kRounds; ++round) {
    Runs runs = run_round(bench);
    keep_fastest(best.dense, std::move(runs.dense));
    keep_fastest(best.window, std::move(runs.window));
    keep_fastest(best.quarter, std::move(runs.quarter));
    keep_fastest(best.half, std::move(runs.half));
  }
  const AttentionProblem problem = problem_of_bench();
  fmt::print("{} tokens, H={} Hkv={} d={} {}, W={}, {} threads; processor seconds, best of {}\n", problem.tokens,
             problem.heads, problem.kv_heads, problem.head_dim, name_of(problem.dtype), kWindow, threads, kRounds);
  fmt::print("dense {:.2f}; window and fusion alone {:.2f} ({:.3f} of dense)\n", best.dense.seconds,
             best.window.seconds, best.window.seconds / best.dense.seconds);
  fmt::print("{:>12}{:>10}{:>22}{:>16}\n", "rows", "seconds", "of dense, no window", "of dense, all");
  for (const Run* const logo : {&best.quarter, &best.half}) {
    fmt::print("{:>11.1f}%{:>10.2f}{:>22.3f}{:>16.3f}\n",
               100.0 * static_cast<double>(logo->selected) / static_cast<double>(problem.tokens), logo->seconds,
               (logo->seconds - best.window.seconds) / best.dense.seconds, logo->seconds / best.dense.seconds);
  }
  const bool right =
      best.dense.right && best.window.right && best.window.selected == 0 && best.quarter.right && best.half.right;
  fmt::print("answers {}\n", right ? "correct" : "WRONG");
  return right;
}

}  // namespace
}  // namespace ringmark

int main(int argc, char** argv) {
  try {
    return ringmark::run(argc > 1 ? std::atoi(argv[1]) : 2) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const ringmark::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
