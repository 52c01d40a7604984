// How much a sparse prefill saves: the whole engine at 131072 planted tokens against exact causal attention by the same
// library (the window kernel with W >= N), one rank, same threads, same run. Dense attention is timed at 16384 tokens
// and extrapolated by N^2, which its operation count follows exactly.
//
// usage: prefill_bench [THREADS]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "comm/thread_ranks.h"
#include "kernels/cpu/isa.h"
#include "runtime/planted_layer.h"
#include "runtime/prefill.h"

namespace ringmark {
namespace {

constexpr std::int64_t kSparseTokens = 131072;
constexpr std::int64_t kDenseTokens = 16384;
constexpr int kRounds = 3;

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 1;
  problem.landmark_slots = true;
  return problem;
}

struct Run {
  double seconds = 0.0;
  bool right = false;
  runtime::StageClock clock;
};

Run measure(const AttentionProblem& problem, const AttentionPolicy& policy, int threads) {
  const auto alone = comm::make_single_rank();
  const auto chosen = comm::choose_transport(*alone, comm::TransportChoice::kAuto);
  const partition::SequenceGrid grid(problem, policy);
  const partition::Layout layout = partition::make_layout(grid, 1, partition::Balance::kContiguous);
  const runtime::PlantedLayer layer(problem, policy, {});
  runtime::LayerShard shard = layer.make_shard(layout, RankId(0), threads);
  runtime::SilentProgress progress;
  runtime::PrefillOptions options;
  options.threads = threads;
  const auto start = std::chrono::steady_clock::now();
  const auto result = runtime::prefill(*alone, *chosen.transport, problem, policy, layout, shard, options, progress);
  Run run{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), false, result.clock};
  const auto needles = layer.count_recovered(*alone, layout.tokens_of(RankId(0)), result.out);
  run.right = needles.recovered == needles.planted;
  return run;
}

int run(int threads) {
  const AttentionPolicy sparse;
  const AttentionPolicy dense{kDenseTokens, 0, 0, Scorer::kNone};
  std::vector<Run> sparse_runs, dense_runs;
  for (int round = 0; round < kRounds; ++round) {
    dense_runs.push_back(measure(problem_of(kDenseTokens), dense, threads));
    sparse_runs.push_back(measure(problem_of(kSparseTokens), sparse, threads));
  }
  const auto faster = [](const Run& a, const Run& b) { return a.seconds < b.seconds; };
  const Run& best_sparse = *std::min_element(sparse_runs.begin(), sparse_runs.end(), faster);
  const Run& best_dense = *std::min_element(dense_runs.begin(), dense_runs.end(), faster);
  constexpr double kLonger = static_cast<double>(kSparseTokens) / kDenseTokens;
  const double extrapolated = best_dense.seconds * kLonger * kLonger;
  fmt::print("prefill, H=4 Hkv=1 d=64 S=64 W=128 K=16 bf16, 1 rank, {} thread(s), {}; best of {} rounds\n", threads,
             kernels::cpu::name_of(kernels::cpu::active_isa()), kRounds);
  fmt::print("  exact causal attention, {} tokens      {:8.2f} s\n", kDenseTokens, best_dense.seconds);
  fmt::print("  the same at {} tokens (x {:.0f}, N^2)    {:8.2f} s\n", kSparseTokens, kLonger * kLonger, extrapolated);
  fmt::print("  sparse prefill, {} tokens             {:8.2f} s\n   ", kSparseTokens, best_sparse.seconds);
  for (const char* stage : {"landmarks", "plan", "window", "select", "attend"}) {
    fmt::print(" {} {:.2f}", stage, best_sparse.clock.seconds(stage));
  }
  const bool right = best_sparse.right;
  fmt::print("\n  sparse is {:.1f} times faster; answers {}\n", extrapolated / best_sparse.seconds,
             right ? "correct" : "WRONG");
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace ringmark

int main(int argc, char** argv) { return ringmark::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 1); }
