// Scoring problems of the wgmma scorer, their lists on the host, and what is right of a list.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/hopper/score.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {

inline constexpr double kUlp = 0x1p-24;

// A scoring problem in memory: landmark records and rows with their eligible chunks, which need not be causal.
struct ScoringCase {
  ScoringCase(DType dtype, int head_dim, int kv_heads, int group, Scorer scorer, int topk, int chunks, int rows,
              std::uint64_t seed)
      : random(seed) {
    shape.heads = kv_heads * group;
    shape.kv_heads = kv_heads;
    shape.group = group;
    shape.head_dim = head_dim;
    shape.topk = topk;
    shape.chunk_count = chunks;
    shape.landmark_heads = scorer == Scorer::kHils ? shape.heads : kv_heads;
    shape.dtype = dtype;
    shape.scorer = scorer;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    geometry.resize(static_cast<std::size_t>(rows));
    for (RowGeometry& row : geometry) row.eligible_end = chunks;
    set_queries(normal_floats(random, std::int64_t{rows} * shape.heads * head_dim));
    records.resize(static_cast<std::size_t>(chunks));
    present.assign(static_cast<std::size_t>(chunks), true);
    for (std::vector<float>& record : records) {
      record = normal_floats(random, std::int64_t{shape.landmark_heads} * (head_dim + 1));
    }
  }

  int rows() const { return static_cast<int>(geometry.size()); }
  void set_queries(const std::vector<float>& values) {
    queries.resize(values.size() * 2);
    narrow(values.data(), shape.dtype, static_cast<std::int64_t>(values.size()), queries.data());
  }
  float* key(int chunk, int head) { return records[static_cast<std::size_t>(chunk)].data() + head * shape.head_dim; }
  float& bias(int chunk, int head) {
    return records[static_cast<std::size_t>(chunk)]
                  [static_cast<std::size_t>(shape.landmark_heads) * static_cast<std::size_t>(shape.head_dim) +
                   static_cast<std::size_t>(head)];
  }
  int landmark_head(int head) const { return head / (shape.heads / shape.landmark_heads); }
  std::vector<float> query(int row, int head) const {
    std::vector<float> values(static_cast<std::size_t>(shape.head_dim));
    widen(queries.data() + (std::int64_t{row} * shape.heads + head) * shape.head_dim * 2, shape.dtype, shape.head_dim,
          values.data());
    return values;
  }
  // NaN where the chunk has no landmark here.
  double score(const std::vector<float>& query, int head, int chunk) {
    if (!present[static_cast<std::size_t>(chunk)]) return std::numeric_limits<double>::quiet_NaN();
    const float* k = key(chunk, landmark_head(head));
    double sum = 0.0;
    for (std::size_t i = 0; i < query.size(); ++i) sum += double{query[i]} * double{k[i]};
    return double{shape.scale} * sum + double{bias(chunk, landmark_head(head))};
  }
  // Random ranges of all kinds: none, one chunk, few, from the start, from a sink on, to the end, anywhere.
  void scatter_ranges() {
    const int n = shape.chunk_count;
    const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit)(random); };
    for (RowGeometry& row : geometry) {
      const int first = below(n), length = below(3) == 0 ? below(shape.topk + 6) : below(n);
      row.eligible_first = below(2) == 0 ? 0 : std::min(n, first);
      row.eligible_end = below(3) == 0 ? n : std::min(n, row.eligible_first + length);
    }
  }

  std::mt19937_64 random;
  LayerShape shape;
  std::vector<RowGeometry> geometry;
  std::vector<std::byte> queries;
  std::vector<std::vector<float>> records;  // by chunk
  std::vector<bool> present;
};

struct ListsOnHost {
  int capacity = 0;
  std::vector<Candidate> candidates;
  std::vector<float> cut;
  std::vector<float2> sum;

  // The used candidates of a pair, best first, and how many slots say that they are unused.
  std::vector<Candidate> of(std::size_t pair, int& unused) const {
    std::vector<Candidate> list;
    unused = 0;
    for (int i = 0; i < capacity; ++i) {
      const Candidate candidate = candidates[pair * static_cast<std::size_t>(capacity) + static_cast<std::size_t>(i)];
      if (candidate.chunk == -1) {
        ++unused;
      } else {
        list.push_back(candidate);
      }
    }
    std::sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
      return a.score > b.score || (a.score == b.score && a.chunk > b.chunk);
    });
    return list;
  }
};

class DeviceScoring {
 public:
  explicit DeviceScoring(ScoringCase& c)
      : c_(c),
        queries_(upload(c.queries, stream_)),
        geometry_(upload(c.geometry, stream_)),
        terms_(LandmarkTiles::term_bytes(c.shape)),
        bias_(std::int64_t{c.shape.landmark_heads} * LandmarkTiles::tiles_of(c.shape.chunk_count) *
              LandmarkTiles::kTileChunks),
        scales_(c.shape.landmark_heads),
        norms_(c.shape.landmark_heads),
        residuals_(c.shape.landmark_heads) {
    std::vector<float> records;
    for (const std::vector<float>& record : c.records) records.insert(records.end(), record.begin(), record.end());
    const auto device_records = upload(records, stream_);
    std::vector<const float*> addresses(c.records.size(), nullptr);
    for (std::size_t i = 0; i < c.records.size(); ++i) {
      if (c.present[i]) addresses[i] = device_records.data() + i * c.records[i].size();
    }
    const auto table = upload(addresses, stream_);
    tiles_.tiles = LandmarkTiles::tiles_of(c.shape.chunk_count);
    tiles_.terms = terms_.data();
    tiles_.bias = bias_.data();
    tiles_.exponent_scale = scales_.data();
    tiles_.key_norm = norms_.data();
    tiles_.residual_norm = residuals_.data();
    split_landmarks(c.shape, table.data(), tiles_, stream_);
    norms = download(norms_, stream_);
    residuals = download(residuals_, stream_);
  }

  ListsOnHost score(RowRange rows) {
    ListsOnHost host;
    host.capacity = ApproximateLists::capacity_of(c_.shape.topk);
    const std::int64_t pairs = rows.size() * c_.shape.heads;
    ringmark::cuda::Buffer<Candidate> candidates(pairs * host.capacity);
    ringmark::cuda::Buffer<float> cut(pairs);
    ringmark::cuda::Buffer<float2> sum(pairs);
    candidates.fill_bytes(0xA5, stream_);
    cut.fill_bytes(0xFF, stream_);
    sum.fill_bytes(0xFF, stream_);
    ApproximateLists lists;
    lists.capacity = host.capacity;
    lists.candidates = candidates.data();
    lists.cut = cut.data();
    lists.sum = sum.data();
    hopper::score_approximately(c_.shape, {geometry_.data(), nullptr, c_.rows()}, queries_.data(), rows, tiles_, lists,
                                stream_);
    host.candidates = download(candidates, stream_);
    host.cut = download(cut, stream_);
    host.sum = download(sum, stream_);
    return host;
  }
  ListsOnHost score() { return score({0, c_.rows()}); }

  std::vector<float> norms;
  std::vector<float> residuals;

 private:
  ScoringCase& c_;
  ringmark::cuda::Stream stream_;
  ringmark::cuda::Buffer<std::byte> queries_;
  ringmark::cuda::Buffer<RowGeometry> geometry_;
  ringmark::cuda::Buffer<std::byte> terms_;
  ringmark::cuda::Buffer<float> bias_;
  ringmark::cuda::Buffer<float> scales_;
  ringmark::cuda::Buffer<float> norms_;
  ringmark::cuda::Buffer<float> residuals_;
  LandmarkTiles tiles_;
};

// One (row, head) pair against fp64. Empty when all is well.
class PairCheck {
 public:
  PairCheck(ScoringCase& c, const DeviceScoring& device, const ListsOnHost& got, int row, int head)
      : c_(c), got_(got), pair_(static_cast<std::size_t>(row * c.shape.heads + head)) {
    const std::vector<float> query = c.query(row, head);
    const auto l = static_cast<std::size_t>(c.landmark_head(head));
    bound_ = double{c.shape.scale} * std::sqrt(dot(query, query)) *
             (double{device.residuals[l]} + 16.0 * kUlp * double{device.norms[l]});
    const RowGeometry& geometry = c.geometry[static_cast<std::size_t>(row)];
    first_ = geometry.eligible_first;
    for (int chunk = first_; chunk < geometry.eligible_end; ++chunk) scores_.push_back(c.score(query, head, chunk));
    where_ = "row " + std::to_string(row) + " head " + std::to_string(head) + " of chunks [" + std::to_string(first_) +
             ", " + std::to_string(geometry.eligible_end) + "): ";
  }

  std::string problem() {
    std::string text = list_problem();
    if (text.empty()) text = sum_problem();
    return text.empty() ? text : where_ + text + "\n";
  }

 private:
  double bound(double score) const { return bound_ + 4.0 * kUlp * std::fabs(score); }
  static bool counts(double score) { return !std::isnan(score) && score > -std::numeric_limits<double>::infinity(); }

  std::string list_problem() const {
    const int most = c_.shape.topk + 4;
    const auto candidates = static_cast<int>(std::count_if(scores_.begin(), scores_.end(), counts));
    int unused = 0;
    const std::vector<Candidate> list = got_.of(pair_, unused);
    if (static_cast<int>(list.size()) != std::min(most, candidates) ||
        unused != got_.capacity - static_cast<int>(list.size())) {
      return std::to_string(list.size()) + " candidates and " + std::to_string(unused) + " unused, of " +
             std::to_string(candidates);
    }
    std::vector<bool> listed(scores_.size(), false);
    for (const Candidate& candidate : list) {
      const int at = candidate.chunk - first_;
      if (at < 0 || at >= static_cast<int>(scores_.size())) return "chunk " + std::to_string(candidate.chunk) + "?";
      const auto i = static_cast<std::size_t>(at);
      if (listed[i]) return "chunk " + std::to_string(candidate.chunk) + " twice";
      listed[i] = true;
      if (!(std::fabs(double{candidate.score} - scores_[i]) <= bound(scores_[i]))) {
        return "chunk " + std::to_string(candidate.chunk) + ": got " + std::to_string(candidate.score) + ", want " +
               std::to_string(scores_[i]) + ", off by " + std::to_string(std::fabs(candidate.score - scores_[i])) +
               ", bound " + std::to_string(bound(scores_[i]) * 1e6) + "e-6";
      }
    }
    double best = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (!listed[i] && counts(scores_[i])) best = std::max(best, scores_[i]);
    }
    const double cut = got_.cut[pair_];
    if (candidates <= most) return cut < -std::numeric_limits<float>::max() ? "" : "cut " + std::to_string(cut);
    const double worst = list.back().score;
    if (!(cut <= worst) || !(std::fabs(cut - best) <= bound(best)) || best > worst + 2.0 * bound(best)) {
      return "cut " + std::to_string(cut) + ", worst listed " + std::to_string(worst) + ", best not listed " +
             std::to_string(best);
    }
    return "";
  }

  std::string sum_problem() const {
    double top = -std::numeric_limits<double>::infinity();
    for (const double score : scores_) top = counts(score) ? std::max(top, score) : top;
    const float2 sum = got_.sum[pair_];
    if (top == -std::numeric_limits<double>::infinity()) return sum.y == 0.0f ? "" : "a sum of nothing";
    double want = 0.0;
    for (const double score : scores_) want += counts(score) ? std::exp(score - top) : 0.0;
    want = c_.shape.group > 1 ? top + std::log(want) : top;
    const double lse = double{sum.x} + std::log(double{sum.y});
    if (std::fabs(lse - want) <= 1e-5 + bound_ + 4.0 * kUlp * std::fabs(want)) return "";
    return "lse " + std::to_string(lse) + ", want " + std::to_string(want) + ", {" + std::to_string(sum.x) + ", " +
           std::to_string(sum.y) + "}";
  }

  ScoringCase& c_;
  const ListsOnHost& got_;
  std::size_t pair_;
  double bound_ = 0.0;
  int first_ = 0;
  std::vector<double> scores_;
  std::string where_;
};

// Checks about `pairs` pairs spread over all, and all of the first and last rows.
inline void expect_right(ScoringCase& c, const DeviceScoring& device, const ListsOnHost& got, int pairs = 400) {
  const int all = c.rows() * c.shape.heads, step = std::max(1, all / pairs) | 1;
  std::string problems;
  for (int pair = 0, found = 0; pair < all && found < 4; pair += step) {
    const std::string problem = PairCheck(c, device, got, pair / c.shape.heads, pair % c.shape.heads).problem();
    problems += problem;
    found += problem.empty() ? 0 : 1;
  }
  EXPECT_EQ(problems, "");
}

inline void expect_right(ScoringCase& c, int pairs = 400) {
  DeviceScoring device(c);
  expect_right(c, device, device.score(), pairs);
}

inline std::string describe(const ScoringCase& c) {
  return std::string(name_of(c.shape.dtype)) + " d " + std::to_string(c.shape.head_dim) + " H " +
         std::to_string(c.shape.heads) + " group " + std::to_string(c.shape.group) + " topk " +
         std::to_string(c.shape.topk) + " chunks " + std::to_string(c.shape.chunk_count) + " rows " +
         std::to_string(c.rows()) + (c.shape.scorer == Scorer::kMean ? " mean" : " hils");
}

}  // namespace ringmark::kernels::cuda
