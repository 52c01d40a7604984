// How close the attention kernels come to a plain fp32 matrix product on the same core, in one run: OpenBLAS sgemm,
// chosen-chunk attention, dense causal attention and window attention take turns, so that all see the same machine.
// Rates count useful floating point operations: 4 x head_dim for every key that a row really attends to.
// Sampled rows are checked against fp64; a wrong one ends the run with exit status 1.
#include <cblas.h>
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "kernels/attend_chunks.h"
#include "kernels/attend_window.h"
#include "kernels/cpu/isa.h"
#include "partition/sequence_grid.h"

namespace ringmark::kernels {
namespace {

constexpr int kThreads = 1;
constexpr int kRounds = 5;
constexpr std::int64_t kGemmSize = 1024;
constexpr int kSampledRows = 24;
constexpr double kBound = 2e-5;
constexpr double kAgreement = 0.98;  // chance that a query chooses what the query before it chose

std::vector<std::byte> random_bfloat16(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  std::vector<std::byte> stored(values.size() * 2);
  narrow(values.data(), DType::kBfloat16, count, stored.data());
  return stored;
}

AttentionProblem problem_of(std::int64_t tokens) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  return problem;
}

// Queries, blocks and room for the results of one problem and policy.
struct Workload {
  Workload(std::int64_t tokens, const AttentionPolicy& wanted)
      : problem(problem_of(tokens)),
        policy(wanted),
        grid(problem, policy),
        random(static_cast<std::uint64_t>(tokens)),
        query_bytes(random_bfloat16(random, tokens * problem.heads * problem.head_dim)),
        queries{query_bytes.data(), problem.dtype, tokens, problem.heads, problem.head_dim},
        block_bytes(random_bfloat16(random, grid.chunk_count() * 2 * problem.chunk_size * problem.head_dim)),
        blocks(BlockShape::of(problem), grid.chunk_count(), 1),
        out(static_cast<std::size_t>(tokens * problem.heads * problem.head_dim)),
        lse(static_cast<std::size_t>(tokens * problem.heads)) {
    for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
      blocks.set(chunk, 0, block_bytes.data() + chunk.value() * blocks.shape().bytes());
    }
    for (std::int64_t token = 0; token < tokens; ++token) token_ids.emplace_back(token);
  }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  TensorView<float, 3> out_view() { return {out.data(), {problem.tokens, problem.heads, problem.head_dim}}; }
  TensorView<float, 2> lse_view() { return {lse.data(), {problem.tokens, problem.heads}}; }
  double flops(std::int64_t keys) const {
    return 4.0 * static_cast<double>(problem.head_dim * problem.heads) * static_cast<double>(keys);
  }

  void attend_window() {
    kernels::attend_window(problem, grid, queries, token_ids, {0, problem.tokens}, blocks, out_view(), lse_view(),
                           kThreads);
  }

  AttentionProblem problem;
  AttentionPolicy policy;
  partition::SequenceGrid grid;
  std::mt19937_64 random;
  std::vector<std::byte> query_bytes;
  RowsView queries;
  std::vector<std::byte> block_bytes;
  BlockTable blocks;
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<TokenId> token_ids;
};

std::vector<double> load(const std::byte* source, std::int64_t count) {
  std::vector<float> narrow_row(static_cast<std::size_t>(count));
  widen(source, DType::kBfloat16, count, narrow_row.data());
  return {narrow_row.begin(), narrow_row.end()};
}

struct ExactRow {
  std::vector<double> out;
  double mass = 0.0;  // sum of e^score
};

// Unnormalised attention of a row over a range of keys. Scores here are small: no maximum is subtracted.
ExactRow attend_exactly(const Workload& w, std::int64_t row, std::int64_t head, Range<TokenId> keys) {
  const std::int64_t dims = w.problem.head_dim;
  const std::vector<double> query = load(w.queries.row(row, head), dims);
  ExactRow exact{std::vector<double>(query.size(), 0.0)};
  for (TokenId token = keys.begin; token < keys.end; ++token) {
    const ChunkId chunk = w.grid.chunk_of(token);
    const std::int64_t slot = (token - w.grid.tokens_of(chunk).begin) * w.blocks.shape().row_bytes();
    const std::vector<double> key = load(w.blocks.keys(chunk, 0) + slot, dims);
    const std::vector<double> value = load(w.blocks.values(chunk, 0) + slot, dims);
    const double score = std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
    const double weight = std::exp(double{w.problem.scale} * score);
    for (std::size_t k = 0; k < value.size(); ++k) exact.out[k] += weight * value[k];
    exact.mass += weight;
  }
  return exact;
}

using ExactOf = std::function<ExactRow(std::int64_t row, std::int64_t head)>;

double worst_error(Workload& w, const ExactOf& exact_of) {
  double worst = 0.0;
  for (int sample = 0; sample < kSampledRows; ++sample) {
    const std::int64_t row = w.problem.tokens - 1 - sample * (w.problem.tokens / kSampledRows);
    const std::int64_t head = sample % w.problem.heads;
    const ExactRow exact = exact_of(row, head);
    const float* out = w.out_view().at(row, head);
    for (std::size_t k = 0; k < exact.out.size(); ++k) {
      const double error = std::fabs(out[k] - exact.out[k] / exact.mass);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    worst = std::max(worst, std::fabs(w.lse_view()(row, head) - std::log(exact.mass)));
  }
  return worst;
}

struct Window : Workload {
  using Workload::Workload;

  std::int64_t keys() const {
    std::int64_t all = 0;
    for (const TokenId token : token_ids) all += grid.window_of(token).size();
    return all;
  }
  double error() {
    return worst_error(*this, [this](std::int64_t row, std::int64_t head) {
      return attend_exactly(*this, row, head, grid.window_of(TokenId(row)));
    });
  }
};

struct Chosen : Workload {
  Chosen(std::int64_t tokens, const AttentionPolicy& wanted)
      : Workload(tokens, wanted), selection(tokens, 1, wanted.topk) {
    landmarks.shape = {problem.heads, 1, problem.head_dim};
    std::normal_distribution<float> normal;
    records.resize(static_cast<std::size_t>(grid.chunk_count() * landmarks.shape.record_floats()));
    for (float& value : records) value = normal(random);
    for (std::int64_t chunk = 0; chunk < grid.chunk_count(); ++chunk) {
      landmarks.records.push_back(records.data() + chunk * landmarks.shape.record_floats());
    }
    for (std::int64_t row = 0; row < tokens; ++row) choose(row);
  }

  void choose(std::int64_t row) {
    const Range<ChunkId> eligible = grid.eligible(TokenId(row));
    const auto slots = selection.slots(row, 0);
    const std::int64_t count = std::min(eligible.size(), policy.topk);
    if (row > 0 && std::uniform_real_distribution<>()(random) < kAgreement) {
      const auto before = selection.slots(row - 1, 0);
      std::copy(before.begin(), before.end(), slots.begin());
      if (static_cast<std::int64_t>(selection.chosen(row, 0).size()) == count) return;
    }
    std::vector<std::int32_t> all(static_cast<std::size_t>(eligible.size()));
    std::iota(all.begin(), all.end(), static_cast<std::int32_t>(eligible.begin.value()));
    std::sample(all.begin(), all.end(), slots.begin(), count, random);
  }

  void attend() {
    attend_chunks(problem, grid, queries, queries, selection, {0, problem.tokens}, blocks, landmarks, out_view(),
                  lse_view(), kThreads);
  }
  // The kernel works in place; the window results are put back outside the timed part.
  void remember_window() {
    attend_window();
    window_out = out;
    window_lse = lse;
  }
  void restore_window() {
    out = window_out;
    lse = window_lse;
  }

  std::int64_t keys() const {
    std::int64_t all = 0;
    for (std::int64_t row = 0; row < problem.tokens; ++row) {
      all += static_cast<std::int64_t>(selection.chosen(row, 0).size()) * problem.chunk_size;
    }
    return all;
  }
  double error() {
    return worst_error(*this, [this](std::int64_t row, std::int64_t head) { return exact_mix(row, head); });
  }

  ExactRow exact_mix(std::int64_t row, std::int64_t head) const {
    ExactRow mixed = attend_exactly(*this, row, head, grid.window_of(TokenId(row)));
    const std::vector<double> query = load(queries.row(row, head), problem.head_dim);
    for (const std::int32_t chunk : selection.chosen(row, 0)) {
      const float* record = landmarks.of(ChunkId(chunk));
      const double score =
          std::inner_product(query.begin(), query.end(), record + head * problem.head_dim, 0.0) * problem.scale +
          record[landmarks.shape.bias_offset() + head];
      const ExactRow inside = attend_exactly(*this, row, head, grid.keys_of(ChunkId(chunk)));
      const double weight = std::exp(score);
      for (std::size_t k = 0; k < mixed.out.size(); ++k) mixed.out[k] += weight * inside.out[k] / inside.mass;
      mixed.mass += weight;
    }
    return mixed;
  }

  Selection selection;
  std::vector<float> records;
  LandmarkRecords landmarks;
  std::vector<float> window_out;
  std::vector<float> window_lse;
};

// Processor time of this thread: everything here runs on one thread, and a run of a second must not lose against one of
// ten milliseconds because another process was scheduled in between.
double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double start = thread_seconds();
  work();
  return thread_seconds() - start;
}

class Gemm {
 public:
  Gemm() : a_(kElements, 0.5f), b_(kElements, 0.25f), c_(kElements) {}
  void multiply() {
    const auto n = static_cast<blasint>(kGemmSize);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a_.data(), n, b_.data(), n, 0.0f, c_.data(),
                n);
  }

 private:
  static constexpr auto kElements = static_cast<std::size_t>(kGemmSize * kGemmSize);
  std::vector<float> a_, b_, c_;
};

struct Case {
  std::string name;
  double flops;
  std::function<void()> prepare;
  std::function<void()> work;
  std::function<double()> error;
  double bar;  // least share of sgemm
  double best = std::numeric_limits<double>::infinity();
};

int run() {
  openblas_set_num_threads(kThreads);
  Gemm gemm;
  Chosen chosen(16384, {.window = 128, .topk = 16});
  chosen.remember_window();
  Window dense8(8192, {.window = 8192, .topk = 0});
  Window dense16(16384, {.window = 16384, .topk = 0});
  Window window(16384, {.window = 128, .topk = 0});
  const double gemm_flops = 2.0 * std::pow(static_cast<double>(kGemmSize), 3);
  std::vector<Case> cases;
  cases.push_back({"chosen chunks N=16384 K=16", chosen.flops(chosen.keys()), [&] { chosen.restore_window(); },
                   [&] { chosen.attend(); }, [&] { return chosen.error(); }, 0.35});
  for (auto& [name, w, bar] : {std::tuple<const char*, Window*, double>{"dense causal N=8192", &dense8, 0.60},
                               {"dense causal N=16384", &dense16, 0.60},
                               {"window W=128 N=16384", &window, 0.0}}) {
    cases.push_back(
        {name, w->flops(w->keys()), [] {}, [w = w] { w->attend_window(); }, [w = w] { return w->error(); }, bar});
  }
  double gemm_best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    for (Case& c : cases) {
      for (int i = 0; i < 4; ++i) gemm_best = std::min(gemm_best, seconds_of([&] { gemm.multiply(); }));
      c.prepare();
      c.best = std::min(c.best, seconds_of(c.work));
    }
  }
  const double gemm_rate = gemm_flops / gemm_best / 1e9;
  fmt::print("# H=4 Hkv=1 d=64 S=64 bf16, {} thread (processor time), {}, best of {} rounds, agreement {}\n", kThreads,
             cpu::name_of(cpu::active_isa()), kRounds, kAgreement);
  fmt::print("{:<28} {:>9} {:>10} {:>9} {:>6} {:>10}\n", "case", "ms", "GFLOP/s", "of sgemm", "bar", "max error");
  fmt::print("{:<28} {:>9.2f} {:>10.1f}\n", fmt::format("sgemm {}^3", kGemmSize), gemm_best * 1e3, gemm_rate);
  bool wrong = false;
  for (Case& c : cases) {
    const double rate = c.flops / c.best / 1e9;
    const double error = c.error();
    wrong = wrong || !(error <= kBound);
    fmt::print("{:<28} {:>9.2f} {:>10.1f} {:>8.1f}% {:>5.0f}% {:>10.1e}{}\n", c.name, c.best * 1e3, rate,
               100.0 * rate / gemm_rate, 100.0 * c.bar, error, error <= kBound ? "" : "  WRONG");
  }
  return wrong ? 1 : 0;
}

}  // namespace
}  // namespace ringmark::kernels

int main() { return ringmark::kernels::run(); }
