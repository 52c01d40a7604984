// Random scoring problems of the shapes that have tensor core kernels, and what their lists must be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/mma/score.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {

struct ScoreShape {
  DType dtype = DType::kBfloat16;
  std::int64_t head_dim = 64;
  std::int64_t group = 4;
  std::int64_t kv_heads = 2;
  Scorer scorer = Scorer::kHils;
  std::int64_t topk = 16;
  std::int64_t rows = 200;
  std::int64_t chunks = 500;
};

// Queries and landmark records without a sequence behind them: any eligible chunks, any number of them.
struct ScoreCase {
  ScoreCase(const ScoreShape& wanted, std::uint64_t seed) : shape(wanted), random(seed) {
    layer.heads = static_cast<std::int32_t>(shape.kv_heads * shape.group);
    layer.kv_heads = static_cast<std::int32_t>(shape.kv_heads);
    layer.group = static_cast<std::int32_t>(shape.group);
    layer.head_dim = static_cast<std::int32_t>(shape.head_dim);
    layer.topk = static_cast<std::int32_t>(shape.topk);
    layer.chunk_count = static_cast<std::int32_t>(shape.chunks);
    layer.landmark_heads = shape.scorer == Scorer::kHils ? layer.heads : layer.kv_heads;
    layer.dtype = shape.dtype;
    layer.scorer = shape.scorer;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    queries = normal_floats(random, shape.rows * layer.heads * shape.head_dim);
    records = normal_floats(random, shape.chunks * layer.landmark_shape().record_floats());
    present.assign(static_cast<std::size_t>(shape.chunks), true);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      RowGeometry geometry;
      geometry.eligible_end = static_cast<std::int32_t>(row * shape.chunks / shape.rows);
      rows.push_back(geometry);
    }
  }

  // Nothing is known of the other rows.
  void scatter_rows() {
    std::uniform_int_distribution<std::int32_t> chunk(0, layer.chunk_count);
    for (RowGeometry& row : rows) {
      std::tie(row.eligible_first, row.eligible_end) = std::minmax({chunk(random), chunk(random)});
    }
  }

  float* key(std::int64_t chunk, std::int64_t landmark_head) {
    return records.data() + chunk * layer.landmark_shape().record_floats() + landmark_head * shape.head_dim;
  }
  float& bias(std::int64_t chunk, std::int64_t landmark_head) {
    const LandmarkShape landmarks = layer.landmark_shape();
    return records[static_cast<std::size_t>(chunk * landmarks.record_floats() + landmarks.bias_offset() +
                                            landmark_head)];
  }

  // As the tensor cores get them.
  std::vector<float> stored_queries() const {
    std::vector<std::byte> bytes(queries.size() * 2);
    narrow(queries.data(), shape.dtype, static_cast<std::int64_t>(queries.size()), bytes.data());
    std::vector<float> stored(queries.size());
    widen(bytes.data(), shape.dtype, static_cast<std::int64_t>(queries.size()), stored.data());
    return stored;
  }

  ScoreShape shape;
  std::mt19937_64 random;
  LayerShape layer;
  std::vector<float> queries;  // [rows, H, d]
  std::vector<float> records;
  std::vector<bool> present;  // chunks with a landmark
  std::vector<RowGeometry> rows;
};

struct Lists {
  std::int64_t capacity = 0;
  std::vector<Candidate> candidates;
  std::vector<float> cut;
  std::vector<float2> sum;

  // The used ones, best first.
  std::vector<Candidate> list(std::size_t pair) const {
    std::vector<Candidate> used;
    for (std::int64_t n = 0; n < capacity; ++n) {
      const Candidate& candidate = candidates[pair * static_cast<std::size_t>(capacity) + static_cast<std::size_t>(n)];
      if (candidate.chunk >= 0) used.push_back(candidate);
    }
    std::sort(used.begin(), used.end(), better);
    return used;
  }
};

// Scores the rows between consecutive cuts, one call each, and puts the results together.
inline Lists score(decltype(mma::score_approximately)* kernel, const ScoreCase& c,
                   const std::vector<std::int64_t>& cuts) {
  const ringmark::cuda::Stream stream;
  const LayerShape& layer = c.layer;
  const StoredTensor stored(layer.dtype, c.shape.rows, layer.heads, layer.head_dim, c.queries);
  const auto queries = upload(stored.view(), stream);
  const auto rows = upload(c.rows, stream);
  const auto records = upload(c.records, stream);
  std::vector<const float*> addresses;
  for (std::int64_t chunk = 0; chunk < c.shape.chunks; ++chunk) {
    const float* record = records.data() + chunk * layer.landmark_shape().record_floats();
    addresses.push_back(c.present[static_cast<std::size_t>(chunk)] ? record : nullptr);
  }
  const auto table = upload(addresses, stream);
  const std::int32_t tile_count = LandmarkTiles::tiles_of(layer.chunk_count);
  const ringmark::cuda::Buffer<std::byte> terms(LandmarkTiles::term_bytes(layer) + 1024);
  const ringmark::cuda::Buffer<float> bias(std::int64_t{layer.landmark_heads} * tile_count * 128);
  const ringmark::cuda::Buffer<float> of_heads(std::int64_t{layer.landmark_heads} * 3);
  const auto misalignment = reinterpret_cast<std::uintptr_t>(terms.data()) % 1024;
  const LandmarkTiles tiles{
      tile_count,      terms.data() + (1024 - misalignment) % 1024, bias.data(),
      of_heads.data(), of_heads.data() + layer.landmark_heads,      of_heads.data() + 2 * layer.landmark_heads};
  split_landmarks(layer, table.data(), tiles, stream);

  Lists all;
  all.capacity = ApproximateLists::capacity_of(layer.topk);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const RowRange range{cuts[i], cuts[i + 1]};
    const std::int64_t pairs = range.size() * layer.heads;
    ringmark::cuda::Buffer<Candidate> candidates(pairs * all.capacity);
    ringmark::cuda::Buffer<float> cut(pairs);
    ringmark::cuda::Buffer<float2> sum(pairs);
    candidates.fill_bytes(0x11, stream);
    cut.fill_bytes(0xFF, stream);
    sum.fill_bytes(0xFF, stream);
    kernel(layer, {rows.data(), nullptr, c.shape.rows}, queries.data(), range, tiles,
           {static_cast<std::int32_t>(all.capacity), candidates.data(), cut.data(), sum.data()}, stream);
    const auto append = [&](auto& to, const auto& from) {
      const auto part = download(from, stream);
      to.insert(to.end(), part.begin(), part.end());
    };
    append(all.candidates, candidates);
    append(all.cut, cut);
    append(all.sum, sum);
  }
  return all;
}

inline std::string words(const ScoreShape& s) {
  std::ostringstream text;
  text << name_of(s.dtype) << " d " << s.head_dim << " group " << s.group << " scorer " << name_of(s.scorer) << " topk "
       << s.topk << " rows " << s.rows << " chunks " << s.chunks;
  return text.str();
}

// fp64 scores of one row and head, by chunk; NaN where the row may not choose.
inline std::vector<double> exact_scores(ScoreCase& c, const std::vector<float>& queries, std::int64_t row,
                                        std::int64_t head) {
  const auto d = static_cast<std::size_t>(c.shape.head_dim);
  const std::int64_t landmark_head = c.layer.landmark_shape().head_of(head, c.layer.heads);
  const float* query = queries.data() + static_cast<std::size_t>(row * c.layer.heads + head) * d;
  const RowGeometry& geometry = c.rows[static_cast<std::size_t>(row)];
  std::vector<double> scores(static_cast<std::size_t>(c.shape.chunks), std::nan(""));
  for (std::int64_t chunk = geometry.eligible_first; chunk < geometry.eligible_end; ++chunk) {
    if (!c.present[static_cast<std::size_t>(chunk)]) continue;
    const float* key = c.key(chunk, landmark_head);
    double sum = 0.0;
    for (std::size_t i = 0; i < d; ++i) sum += double{query[i]} * double{key[i]};
    scores[static_cast<std::size_t>(chunk)] = double{c.layer.scale} * sum + double{c.bias(chunk, landmark_head)};
  }
  return scores;
}

// What is wrong with the result of one row and head; empty when nothing is. `bound` is that of a score's error.
inline std::string fault_of(const Lists& lists, std::size_t pair, const std::vector<double>& scores, std::int64_t topk,
                            double bound) {
  std::ostringstream text;
  const std::vector<Candidate> list = lists.list(pair);
  std::vector<bool> listed(scores.size(), false);
  for (const Candidate& candidate : list) {
    const auto chunk = static_cast<std::size_t>(candidate.chunk);
    const double want = chunk < scores.size() ? scores[chunk] : std::nan("");
    if (std::isnan(want)) {
      text << "chunk " << candidate.chunk << " is not eligible; ";
      continue;
    }
    if (listed[chunk]) text << "chunk " << chunk << " twice; ";
    listed[chunk] = true;
    if (!(std::fabs(double{candidate.score} - want) <= bound)) {
      text << "chunk " << chunk << " got " << candidate.score << " want " << want << "; ";
    }
    if (candidate.score < lists.cut[pair]) text << "chunk " << chunk << " is below the cut; ";
  }
  std::size_t eligible = 0;
  double rest = -std::numeric_limits<double>::infinity(), top = rest, sum = 0.0;
  for (std::size_t chunk = 0; chunk < scores.size(); ++chunk) {
    if (std::isnan(scores[chunk])) continue;
    ++eligible;
    top = std::max(top, scores[chunk]);
    if (!listed[chunk]) rest = std::max(rest, scores[chunk]);
  }
  for (const double score : scores) sum += std::isnan(score) ? 0.0 : std::exp(score - top);
  const std::size_t wanted = std::min(eligible, static_cast<std::size_t>(topk + 4));
  if (list.size() != wanted) text << list.size() << " listed, not " << wanted << "; ";
  const double cut = double{lists.cut[pair]};
  if (std::isinf(rest) ? cut != rest : !(std::fabs(cut - rest) <= bound)) {
    text << "cut " << cut << " best not listed " << rest << "; ";
  }
  const float2 got = lists.sum[pair];
  if (eligible == 0 ? got.y != 0.0f
                    : !(std::fabs(double{got.x} + std::log(double{got.y}) - top - std::log(sum)) <= bound)) {
    text << "lse " << got.x << " + ln " << got.y << " want " << top + std::log(sum) << "; ";
  }
  return text.str();
}

inline void expect_exact(ScoreCase& c, const Lists& lists, double bound) {
  const std::vector<float> queries = c.stored_queries();
  const std::int64_t pairs = c.shape.rows * c.layer.heads;
  std::vector<std::string> faults(static_cast<std::size_t>(pairs));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto at = static_cast<std::size_t>(pair);
    const std::vector<double> scores = exact_scores(c, queries, pair / c.layer.heads, pair % c.layer.heads);
    faults[at] = fault_of(lists, at, scores, c.shape.topk, bound);
  }
  int shown = 0;
  for (std::int64_t pair = 0; pair < pairs && shown < 5; ++pair) {
    const std::string& fault = faults[static_cast<std::size_t>(pair)];
    if (fault.empty()) continue;
    ADD_FAILURE() << "row " << pair / c.layer.heads << " head " << pair % c.layer.heads << ": " << fault.substr(0, 400);
    ++shown;
  }
}

// Two terms leave 2^-21 of a key's largest element; fp32 sums of 128 products add to that.
inline constexpr double kScoreBound = 3e-5;

}  // namespace ringmark::kernels::cuda
