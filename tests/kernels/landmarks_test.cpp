#include "kernels/landmarks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace ringmark::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

AttentionProblem make_problem(std::int64_t tokens, std::int64_t chunk_size, std::int64_t head_dim, DType dtype) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = head_dim;
  problem.chunk_size = chunk_size;
  problem.dtype = dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return problem;
}

// Keys of every chunk in blocks that hold NaN wherever no ordinary key is, and a landmark query of every chunk and
// head.
class LandmarkInput {
 public:
  LandmarkInput(const AttentionProblem& problem, const AttentionPolicy& policy, float query_size = 1.0f)
      : problem_(problem),
        grid_(problem, policy),
        table_(BlockShape::of(problem), grid_.chunk_count(), problem.kv_heads) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    const BlockShape shape = BlockShape::of(problem);
    for (ChunkId chunk(0); chunk.value() < grid_.chunk_count(); ++chunk) {
      chunks_.push_back(chunk);
      for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
        std::vector<float> block(static_cast<std::size_t>(2 * problem.chunk_size * problem.head_dim), kNan);
        const std::int64_t first = grid_.keys_of(chunk).begin - grid_.tokens_of(chunk).begin;
        float* keys = block.data() + first * problem.head_dim;
        for (std::int64_t i = 0; i < grid_.keys_of(chunk).size() * problem.head_dim; ++i) keys[i] = normal(random);
        blocks_.emplace_back(static_cast<std::size_t>(shape.bytes()));
        narrow(block.data(), problem.dtype, static_cast<std::int64_t>(block.size()), blocks_.back().data());
      }
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const auto block = static_cast<std::int64_t>(i);
      table_.set(ChunkId(block / problem.kv_heads), block % problem.kv_heads, blocks_[i].data());
    }
    std::vector<float> rows(chunks_.size() * static_cast<std::size_t>(problem.heads * problem.head_dim));
    for (float& value : rows) value = query_size * normal(random);
    landmark_rows_.resize(rows.size() * static_cast<std::size_t>(size_of(problem.dtype)));
    narrow(rows.data(), problem.dtype, static_cast<std::int64_t>(rows.size()), landmark_rows_.data());
  }

  const partition::SequenceGrid& grid() const { return grid_; }
  const std::vector<ChunkId>& chunks() const { return chunks_; }

  std::vector<float> build(Scorer scorer, std::int64_t first, std::int64_t count, int threads) const {
    const LandmarkShape shape = LandmarkShape::of(problem_, scorer);
    std::vector<float> records(static_cast<std::size_t>(count * shape.record_floats()), -7.0f);
    const RowsView rows = {
        .data = landmark_rows_.data() + first * problem_.heads * problem_.head_dim * size_of(problem_.dtype),
        .dtype = problem_.dtype,
        .rows = count,
        .heads = problem_.heads,
        .head_dim = problem_.head_dim};
    build_landmarks(problem_, scorer, grid_, std::span(chunks_).subspan(first, count), rows, table_, records, threads);
    return records;
  }
  std::vector<float> build(Scorer scorer) const {
    return build(scorer, 0, static_cast<std::int64_t>(chunks_.size()), 1);
  }

  // Ordinary key j of a chunk.
  std::vector<float> key(ChunkId chunk, std::int64_t kv_head, std::int64_t j) const {
    const std::int64_t slot = grid_.keys_of(chunk).begin - grid_.tokens_of(chunk).begin + j;
    std::vector<float> key(static_cast<std::size_t>(problem_.head_dim));
    widen(table_.keys(chunk, kv_head) + slot * table_.shape().row_bytes(), problem_.dtype, problem_.head_dim,
          key.data());
    return key;
  }
  std::vector<float> landmark_query(ChunkId chunk, std::int64_t head) const {
    std::vector<float> query(static_cast<std::size_t>(problem_.head_dim));
    const std::int64_t row = chunk.value() * problem_.heads + head;
    widen(landmark_rows_.data() + row * problem_.head_dim * size_of(problem_.dtype), problem_.dtype, problem_.head_dim,
          query.data());
    return query;
  }
  // scale q . k_j over the ordinary keys of a chunk.
  std::vector<double> logits(ChunkId chunk, std::int64_t kv_head, const std::vector<float>& query) const {
    std::vector<double> logits;
    for (std::int64_t j = 0; j < grid_.keys_of(chunk).size(); ++j) {
      const std::vector<float> k = key(chunk, kv_head, j);
      double dot = 0.0;
      for (std::size_t i = 0; i < k.size(); ++i) dot += static_cast<double>(query[i]) * k[i];
      logits.push_back(problem_.scale * dot);
    }
    return logits;
  }

 private:
  AttentionProblem problem_;
  partition::SequenceGrid grid_;
  std::vector<ChunkId> chunks_;
  std::vector<std::vector<std::byte>> blocks_;
  BlockTable table_;
  std::vector<std::byte> landmark_rows_;
};

double logsumexp(const std::vector<double>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0.0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

struct Tangent {
  std::vector<double> key;
  double bias = 0.0;
};

Tangent tangent_of(const AttentionProblem& problem, const LandmarkInput& input, ChunkId chunk, std::int64_t head) {
  const std::int64_t kv_head = head / problem.group();
  const std::vector<double> logits = input.logits(chunk, kv_head, input.landmark_query(chunk, head));
  const double log_mass = logsumexp(logits);
  Tangent tangent{std::vector<double>(static_cast<std::size_t>(problem.head_dim)), 0.0};
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const double p = std::exp(logits[j] - log_mass);
    const std::vector<float> key = input.key(chunk, kv_head, static_cast<std::int64_t>(j));
    for (std::size_t i = 0; i < key.size(); ++i) tangent.key[i] += p * key[i];
    if (p > 0.0) tangent.bias -= p * std::log(p);
  }
  return tangent;
}

void expect_hils_matches(const AttentionProblem& problem, const LandmarkInput& input, double tolerance) {
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kHils);
  const std::vector<float> records = input.build(Scorer::kHils);
  for (const ChunkId chunk : input.chunks()) {
    const float* record = records.data() + chunk.value() * shape.record_floats();
    if (!input.grid().has_landmark(chunk)) {
      EXPECT_TRUE(std::all_of(record, record + shape.record_floats(), [](float x) { return x == -7.0f; }));
      continue;
    }
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const Tangent expected = tangent_of(problem, input, chunk, head);
      const float bias = record[shape.bias_offset() + head];
      EXPECT_NEAR(bias, expected.bias, tolerance) << "chunk " << chunk.value() << ", head " << head;
      EXPECT_GE(bias, 0.0f);
      EXPECT_LE(bias, static_cast<float>(std::log(static_cast<double>(input.grid().keys_of(chunk).size()))));
      for (std::int64_t i = 0; i < problem.head_dim; ++i) {
        EXPECT_NEAR(record[head * problem.head_dim + i], expected.key[static_cast<std::size_t>(i)], tolerance);
      }
    }
  }
}

TEST(Landmarks, hils_is_the_tangent_plane_in_double_precision) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    for (const std::int64_t head_dim : {1, 17, 64}) {
      const AttentionProblem problem = make_problem(200, 16, head_dim, dtype);
      expect_hils_matches(problem, LandmarkInput(problem, {}), 2e-6);
    }
  }
}

TEST(Landmarks, hils_stays_accurate_when_one_key_takes_nearly_all_weight) {
  const AttentionProblem problem = make_problem(512, 64, 64, DType::kFloat32);
  expect_hils_matches(problem, LandmarkInput(problem, {}, 30.0f), 1e-4);
}

TEST(Landmarks, only_ordinary_keys_count) {
  AttentionProblem problem = make_problem(150, 16, 24, DType::kBfloat16);
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 70, 150};
  AttentionPolicy policy;
  policy.sinks = 20;
  const LandmarkInput input(problem, policy);
  expect_hils_matches(problem, input, 2e-6);
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kMean);
  const std::vector<float> records = input.build(Scorer::kMean);
  for (const ChunkId chunk : input.chunks()) {
    if (!input.grid().has_landmark(chunk)) continue;
    const float* record = records.data() + chunk.value() * shape.record_floats();
    EXPECT_FLOAT_EQ(record[shape.bias_offset()], std::log(static_cast<float>(input.grid().keys_of(chunk).size())));
  }
}

TEST(Landmarks, zero_landmark_query_gives_the_mean_and_the_logarithm_of_the_count) {
  const AttentionProblem problem = make_problem(256, 64, 32, DType::kFloat32);
  const LandmarkInput input(problem, {}, 0.0f);
  const LandmarkShape hils_shape = LandmarkShape::of(problem, Scorer::kHils);
  const LandmarkShape mean_shape = LandmarkShape::of(problem, Scorer::kMean);
  const std::vector<float> hils = input.build(Scorer::kHils);
  const std::vector<float> mean = input.build(Scorer::kMean);
  for (const ChunkId chunk : input.chunks()) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const float* h = hils.data() + chunk.value() * hils_shape.record_floats();
      const float* m = mean.data() + chunk.value() * mean_shape.record_floats();
      const std::int64_t mean_head = mean_shape.head_of(head, problem.heads);
      EXPECT_FLOAT_EQ(h[hils_shape.bias_offset() + head], std::log(64.0f));
      EXPECT_FLOAT_EQ(m[mean_shape.bias_offset() + mean_head], std::log(64.0f));
      for (std::int64_t i = 0; i < problem.head_dim; ++i) {
        EXPECT_NEAR(h[head * problem.head_dim + i], m[mean_head * problem.head_dim + i], 1e-6);
      }
    }
  }
}

TEST(Landmarks, of_a_single_key_is_that_key_exactly) {
  const AttentionProblem problem = make_problem(20, 1, 33, DType::kFloat16);
  const LandmarkInput input(problem, {}, 5.0f);
  for (const Scorer scorer : {Scorer::kHils, Scorer::kMean}) {
    const LandmarkShape shape = LandmarkShape::of(problem, scorer);
    const std::vector<float> records = input.build(scorer);
    for (const ChunkId chunk : input.chunks()) {
      const float* record = records.data() + chunk.value() * shape.record_floats();
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const std::vector<float> key = input.key(chunk, head / (shape.heads / problem.kv_heads), 0);
        EXPECT_EQ(std::memcmp(record + head * problem.head_dim, key.data(), key.size() * sizeof(float)), 0);
        EXPECT_EQ(record[shape.bias_offset() + head], 0.0f);
      }
    }
  }
}

// hils <= log mass <= quest + ln n, where quest bounds every logit of the chunk by its keys' range a component.
TEST(Landmarks, hils_and_quest_bracket_the_log_mass) {
  const AttentionProblem problem = make_problem(256, 32, 48, DType::kFloat32);
  const LandmarkInput input(problem, {}, 2.0f);
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kHils);
  const LandmarkShape quest_shape = LandmarkShape::of(problem, Scorer::kQuest);
  const std::vector<float> records = input.build(Scorer::kHils), quest_records = input.build(Scorer::kQuest);
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (const ChunkId chunk : input.chunks()) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const std::int64_t kv_head = head / problem.group();
      std::vector<float> query(static_cast<std::size_t>(problem.head_dim));
      for (float& value : query) value = normal(random);
      const float* record = records.data() + chunk.value() * shape.record_floats();
      const float* largest =
          quest_records.data() + chunk.value() * quest_shape.record_floats() + kv_head * quest_shape.head_dim;
      const float* least = largest + problem.head_dim;
      double hils = record[shape.bias_offset() + head];
      double quest = std::log(32.0);
      for (std::size_t i = 0; i < query.size(); ++i) {
        const double component = static_cast<double>(problem.scale) * query[i];
        hils += component * record[static_cast<std::size_t>(head * problem.head_dim) + i];
        quest += component * (component > 0.0 ? largest[i] : least[i]);
      }
      const double log_mass = logsumexp(input.logits(chunk, kv_head, query));
      EXPECT_LE(hils, log_mass + 1e-5);
      EXPECT_LE(log_mass, quest + 1e-5);
    }
  }
}

// Sinks and the landmark slot, here NaN, are no keys. A bound that is not reached by some key would be too wide.
TEST(Landmarks, quest_holds_the_range_of_every_component) {
  AttentionProblem problem = make_problem(40, 16, 5, DType::kBfloat16);
  problem.landmark_slots = true;
  AttentionPolicy policy;
  policy.sinks = 3;
  const LandmarkInput input(problem, policy);
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kQuest);
  EXPECT_EQ(shape.record_floats(), problem.kv_heads * (2 * 5 + 1));
  const std::vector<float> records = input.build(Scorer::kQuest);
  for (const ChunkId chunk : {ChunkId(0), ChunkId(1)}) {
    const float* record = records.data() + chunk.value() * shape.record_floats();
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      EXPECT_EQ(record[shape.bias_offset() + head], 0.0f);
      for (std::size_t i = 0; i < 5; ++i) {
        float largest = -kInfinity, least = kInfinity;
        for (std::int64_t j = 0; j < input.grid().keys_of(chunk).size(); ++j) {
          largest = std::max(largest, input.key(chunk, head, j)[i]);
          least = std::min(least, input.key(chunk, head, j)[i]);
        }
        EXPECT_EQ(record[static_cast<std::size_t>(head * 10) + i], largest);
        EXPECT_EQ(record[static_cast<std::size_t>(head * 10 + 5) + i], least);
      }
    }
  }
}

// By hand: of chunks of three slots the third one's key, and none of a chunk that is not full.
TEST(Landmarks, landmark_is_the_key_of_the_last_slot) {
  AttentionProblem problem = make_problem(8, 3, 2, DType::kFloat16);
  problem.heads = problem.kv_heads = 1;
  problem.landmark_slots = true;
  const partition::SequenceGrid grid(problem, {});
  const BlockShape shape = BlockShape::of(problem);
  const std::vector<float> keys = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  std::vector<std::byte> blocks(static_cast<std::size_t>(3 * shape.bytes()));
  BlockTable table(shape, 3, 1);
  for (std::int64_t chunk = 0; chunk < 3; ++chunk) {
    std::byte* block = blocks.data() + chunk * shape.bytes();
    narrow(keys.data() + chunk * 6, problem.dtype, chunk < 2 ? 6 : 4, block);
    table.set(ChunkId(chunk), 0, block);
  }
  const std::vector<ChunkId> chunks = {ChunkId(0), ChunkId(1), ChunkId(2)};
  std::vector<float> records(9, -7.0f);
  build_landmarks(problem, Scorer::kLandmark, grid, chunks, {}, table, records, 1);
  EXPECT_EQ(records, (std::vector<float>{5, 6, 0, 11, 12, 0, -7, -7, -7}));
}

TEST(Landmarks, oracle_holds_the_keys_and_marks_unused_vectors) {
  AttentionProblem problem = make_problem(40, 16, 5, DType::kBfloat16);
  problem.landmark_slots = true;
  AttentionPolicy policy;
  policy.sinks = 3;
  const LandmarkInput input(problem, policy);
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kOracle);
  const std::vector<float> records = input.build(Scorer::kOracle);
  for (const ChunkId chunk : {ChunkId(0), ChunkId(1)}) {
    const std::int64_t used = input.grid().keys_of(chunk).size();
    EXPECT_EQ(used, chunk.value() == 0 ? 12 : 15);
    const float* record = records.data() + chunk.value() * shape.record_floats();
    for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
      EXPECT_EQ(record[shape.bias_offset() + head], 0.0f);
      for (std::int64_t v = 0; v < problem.chunk_size; ++v) {
        const float* vector = record + (head * shape.vectors + v) * shape.head_dim;
        if (v >= used) {
          EXPECT_EQ(vector[0], kInfinity);
          continue;
        }
        const std::vector<float> key = input.key(chunk, head, v);
        EXPECT_TRUE(std::equal(key.begin(), key.end(), vector));
      }
    }
  }
}

TEST(Landmarks, records_depend_on_neither_threads_nor_other_chunks) {
  const AttentionProblem problem = make_problem(333, 16, 40, DType::kFloat16);
  const LandmarkInput input(problem, {});
  for (const Scorer scorer : {Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kQuest}) {
    const auto record = static_cast<std::size_t>(LandmarkShape::of(problem, scorer).record_floats());
    const std::vector<float> all = input.build(scorer);
    EXPECT_EQ(input.build(scorer, 0, static_cast<std::int64_t>(input.chunks().size()), 3), all);
    for (std::size_t i = 0; i < input.chunks().size(); ++i) {
      const std::vector<float> one = input.build(scorer, static_cast<std::int64_t>(i), 1, 1);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(i * record)));
    }
  }
}

TEST(PackedLandmarks, hold_every_record_in_panels) {
  const AttentionProblem problem = make_problem(16 * 70, 16, 9, DType::kFloat32);
  const LandmarkInput input(problem, {});
  const LandmarkShape shape = LandmarkShape::of(problem, Scorer::kHils);
  const std::vector<float> records = input.build(Scorer::kHils);
  const PackedLandmarks packed(shape, input.chunks(), records);
  ASSERT_EQ(packed.panels(), 3);
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    for (std::int64_t lane = 0; lane < 96; ++lane) {
      const float* record = lane < 70 ? records.data() + lane * shape.record_floats() : nullptr;
      const std::int64_t column = lane % PackedLandmarks::kPanel;
      const float* keys = packed.panel(head, lane / PackedLandmarks::kPanel);
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        EXPECT_EQ(keys[i * PackedLandmarks::kPanel + column], record ? record[head * shape.head_dim + i] : 0.0f);
      }
      EXPECT_EQ(packed.bias(head, lane / PackedLandmarks::kPanel)[column],
                record ? record[shape.bias_offset() + head] : -kInfinity);
    }
  }
}

TEST(PackedLandmarks, silence_unused_vectors) {
  const LandmarkShape shape = {1, 3, 2};
  const std::vector<float> records = {1, 2, 3, 4, kInfinity, 6, 0.5f, 7, 8, kInfinity, 0, kInfinity, 0, 0.25f};
  const PackedLandmarks packed(shape, {ChunkId(4), ChunkId(9)}, records);
  ASSERT_EQ(packed.panels(), 1);
  const std::vector<float> bias(packed.bias(0, 0), packed.bias(0, 0) + 7);
  EXPECT_EQ(bias, (std::vector<float>{0.5f, 0.5f, -kInfinity, 0.25f, -kInfinity, -kInfinity, -kInfinity}));
  EXPECT_EQ(packed.panel(0, 0)[2], 0.0f);
  EXPECT_EQ(packed.panel(0, 0)[3], 7.0f);
}

}  // namespace
}  // namespace ringmark::kernels
