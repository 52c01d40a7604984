// How close scoring comes to a plain matrix product: the rate of score_chunks, which also keeps the top-K and the lse
// of every row, over the rate of a single-precision matrix product of OpenBLAS, measured in the same run on the same
// threads. A wrong answer fails the benchmark.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/landmarks.h"
#include "kernels/score_chunks.h"
#include "partition/sequence_grid.h"

namespace ringmark {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kChunks = 2048;
constexpr std::int64_t kChunkSize = 64;
constexpr std::int64_t kQueries = 131072;
constexpr int kRounds = 15;      // of a slice of the queries
constexpr int kWholeRounds = 3;  // of all of them

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> gaussian(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A square product, as the dense yardstick.
class MatrixProduct {
 public:
  explicit MatrixProduct(int size)
      : size_(size),
        a_(gaussian(std::int64_t{size} * size, 1)),
        b_(gaussian(std::int64_t{size} * size, 2)),
        c_(a_.size()) {}

  // FLOP/s of one product.
  double measure() {
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size_, size_, size_, 1.0f, a_.data(), size_, b_.data(),
                size_, 0.0f, c_.data(), size_);
    return 2.0 * size_ * size_ * size_ / seconds_since(start);
  }

 private:
  int size_;
  std::vector<float> a_;
  std::vector<float> b_;
  std::vector<float> c_;
};

// Queries behind all chunks: every chunk is eligible for every row.
class ScoringCase {
 public:
  ScoringCase(std::int64_t head_dim, std::int64_t topk, std::int64_t rows)
      : problem_(problem(head_dim)),
        policy_({.window = kChunkSize, .topk = topk}),
        grid_(problem_, policy_),
        records_(gaussian(kChunks * shape().record_floats(), 3)),
        queries_(gaussian(rows * kHeads * head_dim, 4)),
        landmarks_(shape(), chunk_ids(), records_) {
    for (std::int64_t row = 0; row < rows; ++row) tokens_.push_back(TokenId(problem_.tokens - rows + row));
    for (const TokenId token : tokens_) {
      const Range<ChunkId> eligible = grid_.eligible(token);
      pairs_ += intersect(eligible, {ChunkId(0), ChunkId(kChunks)}).size();
    }
  }

  // FLOP/s over eligible pairs.
  double measure(int threads) {
    const auto start = std::chrono::steady_clock::now();
    lists_ = kernels::score_chunks(problem_, policy_, grid_, queries_view(), tokens_, landmarks_, threads);
    const double seconds = seconds_since(start);
    return 2.0 * static_cast<double>(pairs_ * kHeads * problem_.head_dim) / seconds;
  }

  std::int64_t eligible_per_row() const { return pairs_ / static_cast<std::int64_t>(tokens_.size()); }

  // Lists and sums of a few rows against a plain loop.
  bool correct() const {
    const auto rows = static_cast<std::int64_t>(tokens_.size());
    for (const std::int64_t row : {std::int64_t{0}, rows / 3, rows - 1}) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        if (!row_is_correct(row, head)) return false;
      }
    }
    return true;
  }

 private:
  static AttentionProblem problem(std::int64_t head_dim) {
    AttentionProblem problem;
    problem.tokens = kChunks * kChunkSize + kQueries;
    problem.heads = kHeads;
    problem.kv_heads = 1;
    problem.head_dim = head_dim;
    problem.chunk_size = kChunkSize;
    problem.dtype = DType::kFloat32;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    return problem;
  }

  kernels::LandmarkShape shape() const { return kernels::LandmarkShape::of(problem_, policy_.scorer); }

  static std::vector<ChunkId> chunk_ids() {
    std::vector<ChunkId> chunks;
    for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) chunks.push_back(ChunkId(chunk));
    return chunks;
  }

  RowsView queries_view() const {
    return {.data = reinterpret_cast<const std::byte*>(queries_.data()),
            .dtype = DType::kFloat32,
            .rows = static_cast<std::int64_t>(tokens_.size()),
            .heads = kHeads,
            .head_dim = problem_.head_dim};
  }

  bool row_is_correct(std::int64_t row, std::int64_t head) const {
    const float* query = queries_.data() + (row * kHeads + head) * problem_.head_dim;
    std::vector<kernels::Candidate> all;
    kernels::LogSum sum;
    const Range<ChunkId> eligible = grid_.eligible(tokens_[static_cast<std::size_t>(row)]);
    for (ChunkId chunk = eligible.begin; chunk < eligible.end && chunk.value() < kChunks; ++chunk) {
      const float* record = records_.data() + chunk.value() * shape().record_floats();
      float score = 0.0f;
      for (std::int64_t i = 0; i < problem_.head_dim; ++i) {
        score = std::fma(problem_.scale * query[i], record[head * problem_.head_dim + i], score);
      }
      score += record[shape().bias_offset() + head];
      sum.add(score);
      all.push_back({score, static_cast<std::int32_t>(chunk.value())});
    }
    std::sort(all.begin(), all.end(), kernels::better);
    const std::span<const kernels::Candidate> list = lists_.list(row, head);
    const bool same_list = std::equal(list.begin(), list.end(), all.begin(), [](const auto& a, const auto& b) {
      return a.score == b.score && a.chunk == b.chunk;
    });
    return same_list && lists_.sum(row, head).value() == sum.value();
  }

  AttentionProblem problem_;
  AttentionPolicy policy_;
  partition::SequenceGrid grid_;
  std::vector<float> records_;
  std::vector<float> queries_;
  kernels::PackedLandmarks landmarks_;
  std::vector<TokenId> tokens_;
  kernels::CandidateLists lists_;
  std::int64_t pairs_ = 0;
};

// Prints one line of the table. False when the answer is wrong.
bool run_case(std::int64_t head_dim, std::int64_t topk, std::int64_t rows, int rounds, int threads,
              MatrixProduct& product) {
  ScoringCase scoring(head_dim, topk, rows);
  std::vector<double> dense;
  std::vector<double> scored;
  std::vector<double> ratios;  // of neighbours in time, so that a change of clock or load touches both
  for (int round = 0; round < rounds; ++round) {
    dense.push_back(product.measure());
    scored.push_back(scoring.measure(threads));
    ratios.push_back(scored.back() / dense.back());
  }
  const bool correct = scoring.correct();
  fmt::print("{:>4} {:>4} {:>6} {:>9} {:>9.1f} {:>9.1f} {:>6.1f}%  {}\n", head_dim, topk, rows,
             scoring.eligible_per_row(), median(dense) / 1e9, median(scored) / 1e9, 100.0 * median(ratios),
             correct ? "correct" : "WRONG");
  return correct;
}

int run(int threads) {
  openblas_set_num_threads(threads);
  MatrixProduct product(1024);
  product.measure();
  fmt::print("score_chunks ({}, {} heads, {} thread(s)) against cblas_sgemm 1024^3; medians, GFLOP/s\n",
             kernels::cpu::name_of(kernels::cpu::active_isa()), kHeads, threads);
  fmt::print("{:>4} {:>4} {:>6} {:>9} {:>9} {:>9} {:>7}\n", "d", "K", "rows", "landmarks", "sgemm", "scoring", "ratio");
  bool correct = run_case(64, 16, kQueries, kWholeRounds, threads, product);
  for (const std::int64_t head_dim : {64, 128}) {
    const std::int64_t slice = kQueries / head_dim;  // a fraction of a second
    for (const std::int64_t topk : {16, 32}) {
      correct = run_case(head_dim, topk, slice, kRounds, threads, product) && correct;
    }
  }
  return correct ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace ringmark

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1 || argc > 2) {
    fmt::print(stderr, "usage: score_bench [threads]; threads = {} is not a number from 1\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  return ringmark::run(threads);
}
