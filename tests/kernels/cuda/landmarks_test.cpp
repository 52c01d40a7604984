#include "kernels/cuda/landmarks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {
namespace {

// Chunks of a case in some order, with the landmark queries of its rows.
struct LandmarkCase : AttentionCase {
  LandmarkCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed, float query_size)
      : AttentionCase(p, wanted, seed),
        retrieval(p.dtype, p.tokens, p.heads, p.head_dim, scaled_floats(p, query_size)),
        shape(LandmarkShape::of(p, wanted.scorer)) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(grid.chunk_count()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(std::max<std::size_t>(1, order.size() * 3 / 4));
    for (const std::int32_t chunk : order) {
      chunks.emplace_back(chunk);
      has_landmark.push_back(grid.has_landmark(ChunkId(chunk)) ? 1 : 0);
      landmark_rows.push_back(has_landmark.back() ? grid.landmark_slot(ChunkId(chunk)).value() : -1);
    }
  }

  std::vector<float> scaled_floats(const AttentionProblem& p, float size) {
    std::vector<float> floats = normal_floats(random, p.tokens * p.heads * p.head_dim);
    for (float& value : floats) value *= size;
    return floats;
  }

  // Records of chunks without landmark are zero.
  std::vector<float> built_on_cpu() const {
    std::vector<float> queries_of_chunks;
    for (const std::int64_t row : landmark_rows) {
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        const std::vector<float> query = retrieval.row(std::max<std::int64_t>(row, 0), head);
        queries_of_chunks.insert(queries_of_chunks.end(), query.begin(), query.end());
      }
    }
    const StoredTensor rows(problem.dtype, static_cast<std::int64_t>(chunks.size()), problem.heads, problem.head_dim,
                            queries_of_chunks);
    std::vector<float> records(chunks.size() * static_cast<std::size_t>(shape.record_floats()), 0.0f);
    kernels::build_landmarks(problem, policy.scorer, grid, chunks, rows.view(), blocks.table(), records, 4);
    return records;
  }

  std::vector<float> built_on_device(Path path) const {
    const DeviceCase device(*this, path);
    std::vector<std::int32_t> ids;
    for (const ChunkId chunk : chunks) ids.push_back(static_cast<std::int32_t>(chunk.value()));
    const auto device_chunks = upload(ids, device.stream);
    const auto device_has_landmark = upload(has_landmark, device.stream);
    const auto device_rows = upload(landmark_rows, device.stream);
    const auto queries_of_rows = upload(retrieval.view(), device.stream);
    ringmark::cuda::Buffer<float> records(static_cast<std::int64_t>(chunks.size()) * shape.record_floats());
    records.fill_bytes(0xFF, device.stream);
    build_landmarks(device.shape, device.geometry(), device.blocks.view(), device_chunks.data(),
                    device_has_landmark.data(), device_rows.data(), static_cast<std::int64_t>(chunks.size()),
                    queries_of_rows.data(), records.data(), device.stream);
    return download(records, device.stream);
  }

  StoredTensor retrieval;
  LandmarkShape shape;
  std::vector<ChunkId> chunks;
  std::vector<std::uint8_t> has_landmark;
  std::vector<std::int64_t> landmark_rows;
};

// Keys bit for bit; biases to one unit in the last place, since they pass through a logarithm in fp64.
std::string differences(const LandmarkCase& c, const std::vector<float>& got, const std::vector<float>& want) {
  std::string text;
  int most = 5;
  for (std::size_t i = 0; i < want.size() && most > 0; ++i) {
    const auto at = static_cast<std::int64_t>(i) % c.shape.record_floats();
    const bool is_bias = at >= c.shape.bias_offset();
    const float unit = std::nextafter(std::fabs(want[i]), INFINITY) - std::fabs(want[i]);
    if (std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i])) continue;
    if (is_bias && std::fabs(got[i] - want[i]) <= unit) continue;
    const std::size_t slot = i / static_cast<std::size_t>(c.shape.record_floats());
    text += "chunk " + std::to_string(c.chunks[slot].value()) + (c.has_landmark[slot] ? "" : " (no landmark)") +
            (is_bias ? " bias of head " + std::to_string(at - c.shape.bias_offset())
                     : " head " + std::to_string(at / c.shape.head_dim / c.shape.vectors) + " vector " +
                           std::to_string(at / c.shape.head_dim % c.shape.vectors) + " channel " +
                           std::to_string(at % c.shape.head_dim)) +
            ": got " + std::to_string(got[i]) + ", want " + std::to_string(want[i]) + "\n";
    --most;
  }
  if (text.empty()) return text;
  const AttentionProblem& p = c.problem;
  return text + std::string(name_of(c.policy.scorer)) + " tokens " + std::to_string(p.tokens) + " heads " +
         std::to_string(p.heads) + "/" + std::to_string(p.kv_heads) + " head_dim " + std::to_string(p.head_dim) +
         " chunk_size " + std::to_string(p.chunk_size) + " " + std::string(name_of(p.dtype)) + " sinks " +
         std::to_string(c.policy.sinks) + " landmark slots " + std::to_string(p.landmark_slots);
}

TEST(CudaBuildLandmarks, of_random_problems_have_the_cpu_s_bits) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(61);
  for (int trial = 0; trial < 150; ++trial) {
    const AttentionProblem problem = random_problem(random);
    AttentionPolicy policy = random_policy(random, problem);
    policy.scorer = pick<Scorer>(random, {Scorer::kHils, Scorer::kHils, Scorer::kMean, Scorer::kOracle});
    const LandmarkCase c(problem, policy, random(), pick<float>(random, {0.0f, 1.0f, 1.0f, 30.0f}));
    ASSERT_EQ(differences(c, c.built_on_device(Path::kSimt), c.built_on_cpu()), "") << "trial " << trial;
  }
}

// 16-bit keys, 64 a chunk, head_dim 64 or 128.
TEST(CudaBuildLandmarks, of_the_usual_shapes_have_the_cpu_s_bits_in_both_block_orders) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  std::mt19937_64 random(62);
  for (int trial = 0; trial < 120; ++trial) {
    AttentionProblem problem = random_problem(random);
    problem.tokens = pick<std::int64_t>(random, {64, 640, 1000, 4096});
    problem.cu_seqlens.clear();
    problem.kv_heads = pick<std::int64_t>(random, {1, 2});
    problem.heads = problem.kv_heads * pick<std::int64_t>(random, {1, 2, 3, 4, 8, 16});
    problem.chunk_size = 64;
    problem.head_dim = pick<std::int64_t>(random, {64, 128});
    problem.dtype = pick<DType>(random, {DType::kBfloat16, DType::kFloat16});
    AttentionPolicy policy;
    policy.sinks = pick<std::int64_t>(random, {0, 0, 4, 62, 63, 73});
    policy.scorer = pick<Scorer>(random, {Scorer::kHils, Scorer::kHils, Scorer::kHils, Scorer::kMean});
    const LandmarkCase c(problem, policy, random(), pick<float>(random, {0.0f, 1.0f, 1.0f, 30.0f}));
    const Path path = pick<Path>(random, {Path::kSimt, Path::kMma});
    ASSERT_EQ(differences(c, c.built_on_device(path), c.built_on_cpu()), "")
        << "trial " << trial << " blocks for " << name_of(path);
  }
}

// Random records, some of them missing, and their tiles.
struct SplitCase {
  SplitCase(std::mt19937_64& random, DType dtype, std::int32_t head_dim, std::int32_t heads, std::int32_t chunk_count,
            float size) {
    shape.dtype = dtype;
    shape.head_dim = head_dim;
    shape.landmark_heads = heads;
    shape.chunk_count = chunk_count;
    record_floats = shape.landmark_shape().record_floats();
    records = normal_floats(random, chunk_count * record_floats);
    for (float& value : records) value *= size;
    for (std::int32_t chunk = 0; chunk < chunk_count; ++chunk) present.push_back(random() % 6 != 0);
    split();
  }

  void split() {
    const ringmark::cuda::Stream stream;
    const std::int32_t tile_count = LandmarkTiles::tiles_of(shape.chunk_count);
    const auto device_records = upload(records, stream);
    std::vector<const float*> addresses;
    for (std::int32_t chunk = 0; chunk < shape.chunk_count; ++chunk) {
      addresses.push_back(present[static_cast<std::size_t>(chunk)] ? device_records.data() + chunk * record_floats
                                                                   : nullptr);
    }
    const auto table = upload(addresses, stream);
    ringmark::cuda::Buffer<std::byte> device_terms(LandmarkTiles::term_bytes(shape));
    ringmark::cuda::Buffer<float> device_bias(std::int64_t{shape.landmark_heads} * tile_count *
                                              LandmarkTiles::kTileChunks);
    ringmark::cuda::Buffer<float> numbers(3 * shape.landmark_heads);
    device_terms.fill_bytes(0xFF, stream);
    device_bias.fill_bytes(0xFF, stream);
    numbers.fill_bytes(0xFF, stream);
    float* first = numbers.data();
    split_landmarks(shape, table.data(),
                    {tile_count, device_terms.data(), device_bias.data(), first, first + shape.landmark_heads,
                     first + 2 * shape.landmark_heads},
                    stream);
    terms = download(device_terms, stream);
    bias = download(device_bias, stream);
    per_head = download(numbers, stream);
  }

  // 0: exponent_scale, 1: key_norm, 2: residual_norm.
  double number(int which, std::int64_t head) const {
    return per_head[static_cast<std::size_t>(which * shape.landmark_heads + head)];
  }
  // 0: hi, 1: lo.
  double term(std::int64_t head, std::int64_t chunk, int which, std::int64_t channel) const {
    const std::int64_t tile = head * LandmarkTiles::tiles_of(shape.chunk_count) + chunk / LandmarkTiles::kTileChunks;
    const std::int64_t offset =
        (tile * 2 + which) * LandmarkTiles::kTileChunks * shape.head_dim * 2 +
        swizzled_offset(LandmarkTiles::kTileChunks, chunk % LandmarkTiles::kTileChunks, channel);
    float value = 0.0f;
    widen(terms.data() + offset, DType::kFloat16, 1, &value);
    return value;
  }
  double key(std::int64_t head, std::int64_t chunk, std::int64_t channel) const {
    return records[static_cast<std::size_t>(chunk * record_floats + head * shape.head_dim + channel)];
  }
  bool exists(std::int64_t chunk) const {
    return chunk < shape.chunk_count && present[static_cast<std::size_t>(chunk)];
  }

  LayerShape shape;
  std::int64_t record_floats = 0;
  std::vector<float> records;
  std::vector<bool> present;
  std::vector<std::byte> terms;
  std::vector<float> bias;
  std::vector<float> per_head;
};

void expect_empty(const SplitCase& c, std::int64_t head, std::int64_t chunk) {
  for (std::int64_t channel = 0; channel < c.shape.head_dim; ++channel) {
    ASSERT_EQ(c.term(head, chunk, 0, channel), 0.0) << "head " << head << " chunk " << chunk;
    ASSERT_EQ(c.term(head, chunk, 1, channel), 0.0) << "head " << head << " chunk " << chunk;
  }
}

void expect_head(const SplitCase& c, std::int64_t head) {
  const double scale = c.number(0, head);
  double largest = 0.0, key_norm = 0.0, residual_norm = 0.0;
  const std::int64_t places = std::int64_t{LandmarkTiles::tiles_of(c.shape.chunk_count)} * LandmarkTiles::kTileChunks;
  for (std::int64_t chunk = 0; chunk < places; ++chunk) {
    const float bias = c.bias[static_cast<std::size_t>(head * places + chunk)];
    if (!c.exists(chunk)) {
      EXPECT_EQ(bias, kMinusInfinity) << "head " << head << " chunk " << chunk;
      expect_empty(c, head, chunk);
      continue;
    }
    EXPECT_EQ(
        bias,
        c.records[static_cast<std::size_t>(chunk * c.record_floats + c.shape.landmark_shape().bias_offset() + head)]);
    double key_square = 0.0, residual_square = 0.0, largest_of_key = 0.0, largest_residual = 0.0;
    for (std::int64_t channel = 0; channel < c.shape.head_dim; ++channel) {
      const double key = c.key(head, chunk, channel);
      const double residual = key - scale * (c.term(head, chunk, 0, channel) + c.term(head, chunk, 1, channel));
      key_square += key * key;
      residual_square += residual * residual;
      largest_of_key = std::max(largest_of_key, std::fabs(key));
      largest_residual = std::max(largest_residual, std::fabs(residual));
    }
    // Two fractions of eleven bits; what is far below the head's largest element ends at fp16's smallest step.
    const double bound = std::max(0x1p-21 * largest_of_key, scale * 0x1p-25);
    EXPECT_LE(largest_residual, bound) << "head " << head << " chunk " << chunk;
    largest = std::max(largest, largest_of_key);
    key_norm = std::max(key_norm, std::sqrt(key_square));
    residual_norm = std::max(residual_norm, std::sqrt(residual_square));
  }
  EXPECT_GE(c.number(1, head), key_norm) << "head " << head;
  EXPECT_LE(c.number(1, head), key_norm * (1 + 1e-5)) << "head " << head;
  EXPECT_GE(c.number(2, head), residual_norm) << "head " << head;
  EXPECT_LE(c.number(2, head), residual_norm * (1 + 1e-5)) << "head " << head;
  int exponent = 0;
  EXPECT_EQ(std::frexp(scale, &exponent), 0.5) << "a power of two";
  if (largest > 0.0) {
    EXPECT_GE(largest / scale, 0x1p12) << "head " << head;
    EXPECT_LT(largest / scale, 0x1p13) << "head " << head;
  } else {
    EXPECT_EQ(scale, 1.0) << "head " << head;
  }
}

TEST(CudaSplitLandmarks, add_up_to_the_keys_and_bound_what_is_left) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  std::mt19937_64 random(63);
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const std::int32_t head_dim : {64, 128}) {
      for (const std::int32_t chunk_count : {1, 127, 128, 129, 700}) {
        for (const float size : {0.0f, 1e-8f, 1.0f, 3e5f}) {
          const SplitCase c(random, dtype, head_dim, 3, chunk_count, size);
          for (std::int64_t head = 0; head < 3; ++head) expect_head(c, head);
          ASSERT_FALSE(HasFailure()) << name_of(dtype) << " head_dim " << head_dim << " chunks " << chunk_count
                                     << " size " << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
