#include "kernels/landmark_backward.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ringmark::kernels {
namespace {

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t x = 0; x < count; ++x) sum += double{a[x]} * b[x];
  return sum;
}

void add(double factor, const float* vector, std::int64_t count, float* into) {
  const auto narrow = static_cast<float>(factor);
  for (std::int64_t x = 0; x < count; ++x) into[x] = std::fma(narrow, vector[x], into[x]);
}

// The landmarks of one (chunk, kv head) at a time. One per thread.
class LandmarkBackward {
 public:
  explicit LandmarkBackward(const AttentionProblem& problem)
      : problem_(problem),
        d_(problem.head_dim),
        keys_(static_cast<std::size_t>(problem.chunk_size * problem.head_dim)),
        query_(static_cast<std::size_t>(problem.head_dim)),
        log_p_(static_cast<std::size_t>(problem.chunk_size)) {}

  // `keys` are the block's ordinary keys, `key_gradient` their dk.
  void open(const BlockShape& block, const std::byte* keys, std::int64_t count, float* key_gradient) {
    count_ = count;
    key_gradient_ = key_gradient;
    widen(keys, block.dtype, count * d_, keys_.data());
  }

  // reached: dL/dk'.
  void mean(const float* reached) {
    for (std::int64_t j = 0; j < count_; ++j) add(1.0 / static_cast<double>(count_), reached, d_, gradient(j));
  }

  // landmark, bias: of the forward; reached, reached_bias: dL/dk', dL/db'; query_gradient: dL/dq', written.
  void hils(const RowsView& queries, std::int64_t row, std::int64_t head, const float* landmark, float bias,
            const float* reached, float reached_bias, float* query_gradient) {
    queries.load(row, head, query_.data());
    find_log_p();
    std::fill_n(query_gradient, d_, 0.0f);
    const double along_landmark = dot(landmark, reached, d_);
    for (std::int64_t j = 0; j < count_; ++j) {
      const double log_p = log_p_[static_cast<std::size_t>(j)];
      const double p = std::exp(log_p);
      if (p == 0.0) continue;
      const double along = dot(key(j), reached, d_) - along_landmark;
      const double slope = problem_.scale * p * (along - double{reached_bias} * (log_p + double{bias}));  // a dz_j
      add(slope, key(j), d_, query_gradient);
      add(slope, query_.data(), d_, gradient(j));
      add(p, reached, d_, gradient(j));
    }
  }

 private:
  const float* key(std::int64_t j) const { return keys_.data() + j * d_; }
  float* gradient(std::int64_t j) const { return key_gradient_ + j * d_; }

  void find_log_p() {
    const auto end = log_p_.begin() + count_;
    for (std::int64_t j = 0; j < count_; ++j) {
      log_p_[static_cast<std::size_t>(j)] = problem_.scale * dot(query_.data(), key(j), d_);
    }
    const double top = *std::max_element(log_p_.begin(), end);
    double sum = 0.0;
    std::for_each(log_p_.begin(), end, [&](double z) { sum += std::exp(z - top); });
    std::for_each(log_p_.begin(), end, [&](double& z) { z -= top + std::log(sum); });
  }

  const AttentionProblem& problem_;
  std::int64_t d_;
  std::int64_t count_ = 0;
  float* key_gradient_ = nullptr;
  std::vector<float> keys_;
  std::vector<float> query_;
  std::vector<double> log_p_;
};

}  // namespace

void landmark_gradients(const AttentionProblem& problem, Scorer scorer, const partition::SequenceGrid& grid,
                        std::span<const ChunkId> chunks, const RowsView& landmark_rows, const BlockTable& blocks,
                        std::span<const float> records, const GradientTable& gradients,
                        TensorView<float, 3> query_gradient, int threads) {
  const LandmarkShape landmarks = LandmarkShape::of(problem, scorer);
  const GradientShape& shape = gradients.shape();
  std::vector<LandmarkBackward> workers(static_cast<std::size_t>(threads), LandmarkBackward(problem));
  const std::int64_t tasks = std::ssize(chunks) * problem.kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t slot = task / problem.kv_heads;
    const std::int64_t kv_head = task % problem.kv_heads;
    const ChunkId chunk = chunks[static_cast<std::size_t>(slot)];
    if (!grid.has_landmark(chunk)) continue;
    LandmarkBackward& worker = workers[static_cast<std::size_t>(omp_get_thread_num())];
    const Range<TokenId> keys = grid.keys_of(chunk);
    const std::int64_t first = keys.begin - grid.tokens_of(chunk).begin;
    float* const into = gradients.of(chunk, kv_head);
    worker.open(blocks.shape(), blocks.keys(chunk, kv_head) + first * blocks.shape().row_bytes(), keys.size(),
                into + first * problem.head_dim);
    const float* const record = records.data() + slot * landmarks.record_floats();
    for (std::int64_t n = 0; n < shape.landmark_heads; ++n) {
      const float* const reached = into + shape.landmark_keys_at() + n * problem.head_dim;
      const std::int64_t head = kv_head * shape.landmark_heads + n;
      if (scorer == Scorer::kMean) worker.mean(reached);
      if (scorer != Scorer::kHils) continue;
      worker.hils(landmark_rows, slot, head, record + head * problem.head_dim, record[landmarks.bias_offset() + head],
                  reached, into[shape.landmark_biases_at() + n], query_gradient.at(slot, head));
    }
  }
}

}  // namespace ringmark::kernels
