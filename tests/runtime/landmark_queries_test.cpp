// Landmark queries that are no rows of the sequence: from the file to the result, on any ranks.
#include "runtime/landmark_queries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <set>

#include "comm/thread_ranks.h"
#include "kernels/positions/rotate.h"
#include "kvstore/safetensors_writer.h"
#include "runtime/layer_file.h"
#include "runtime/layer_positions.h"
#include "tests/kvstore/temporary_folder.h"
#include "tests/runtime/prefill_checks.h"
#include "tests/support/refusal.h"

namespace ringmark::test {
namespace {

using runtime::LandmarkQuery;

std::vector<float> normal_floats(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// All results by rank count, route and layout must be the same bits; the first one is returned.
GatheredResult same_on_any_ranks(const TestLayer& layer) {
  std::optional<GatheredResult> first;
  std::mutex lock;
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const Route& route : routes(comm::TransportChoice::kAuto)) {
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        runtime::PrefillOptions options;
        options.merge = route.merge;
        const auto result = run_prefill(communicator, route.transport, layer, route.balance, options);
        const std::scoped_lock hold(lock);
        if (!first) first = result;
        EXPECT_TRUE(result.out == first->out && result.lse == first->lse && result.chunks == first->chunks)
            << ranks << " ranks, " << describe(route);
      });
    }
  }
  return *first;
}

// One landmark query a chunk, random; or the same one for all.
void give_queries(TestLayer& layer, bool shared, std::uint64_t seed) {
  const AttentionProblem& p = layer.problem;
  const partition::SequenceGrid grid(p, layer.policy);
  std::vector<float> queries = normal_floats(grid.chunk_count() * p.heads * p.head_dim, seed);
  const auto width = static_cast<std::size_t>(p.heads * p.head_dim);
  for (std::size_t i = width; shared && i < queries.size(); ++i) queries[i] = queries[i - width];
  layer.landmark_q = stored(queries, p.dtype);
}

TEST(LandmarkQueries, layers_match_the_reference_and_are_the_same_bits_on_any_ranks) {
  std::uint64_t seed = 0;
  for (const bool shared : {false, true}) {
    for (AttentionProblem problem :
         {problem_of(330, 16, 4, 2, 80, DType::kBfloat16), problem_of(257, 64, 2, 1, 128, DType::kFloat16),
          problem_of(200, 16, 3, 3, 32, DType::kFloat32)}) {
      problem.landmark_slots = seed % 2 == 0;
      if (seed % 3 == 0) problem.cu_seqlens = {0, 101, 101, problem.tokens};
      TestLayer layer = random_layer(problem, {.window = 20, .topk = 3, .sinks = 2}, ++seed);
      give_queries(layer, shared, seed);
      const auto reference = run_reference(layer);
      comm::run_thread_ranks(3, [&](comm::Communicator& communicator) {
        check_against_reference(communicator, layer, reference, Route{});
      });
      same_on_any_ranks(layer);
    }
  }
}

// Those at the last slots given beside the sequence are those of the slots, bit for bit.
TEST(LandmarkQueries, of_the_slots_themselves_change_nothing) {
  TestLayer layer = random_layer(problem_of(330, 16, 4, 2, 64, DType::kBfloat16), {.window = 20, .topk = 3}, 7);
  const GatheredResult expected = same_on_any_ranks(layer);
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  const std::size_t row_bytes = layer.q.size() / 330;
  for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) {
    const auto last = static_cast<std::size_t>(grid.tokens_of(chunk).end.value() - 1);
    const auto row = std::span(layer.retrieval_q).subspan(last * row_bytes, row_bytes);
    layer.landmark_q.insert(layer.landmark_q.end(), row.begin(), row.end());
  }
  const GatheredResult got = same_on_any_ranks(layer);
  EXPECT_EQ(got.out, expected.out);
  EXPECT_EQ(got.digest, expected.digest);
  give_queries(layer, false, 3);
  EXPECT_NE(same_on_any_ranks(layer).out, expected.out);
}

// Keys 0 and ln 3 in the first chunk, 0 in the second; query 1 everywhere, values 0, 1 and 0. The last row attends to
// its own key, mass 1, and chooses chunk 0, whose keys it weighs 1 to 3.
TestLayer by_hand(std::int64_t heads, const std::vector<float>& landmark_q) {
  TestLayer layer{problem_of(3, 2, heads, 1, 1, DType::kFloat32), {.window = 0, .topk = 1}, {}, {}, {}, {}};
  layer.q = stored(std::vector<float>(static_cast<std::size_t>(3 * heads), 1.0f), DType::kFloat32);
  layer.k = stored({0.0f, std::log(3.0f), 0.0f}, DType::kFloat32);
  layer.v = stored({0.0f, 1.0f, 0.0f}, DType::kFloat32);
  layer.landmark_q = stored(landmark_q, DType::kFloat32);
  return layer;
}

// The landmark query of the query itself: p = (1, 3) / 4, and the score is the chunk's mass, ln 4. So the last row is
// exact: lse = ln (4 + 1), out = 3/5.
TEST(LandmarkQueries, by_hand_a_query_that_is_asked_again) {
  const GatheredResult result = same_on_any_ranks(by_hand(1, {1.0f, 0.0f}));
  EXPECT_NEAR(result.lse[2], std::log(5.0), 1e-6);
  EXPECT_NEAR(result.out[2], 3.0 / 5.0, 1e-6);
}

// A landmark query of zeros: p = (1, 1) / 2, k' = ln(3) / 2, b' = ln 2, the mass is taken for 2 sqrt 3.
TEST(LandmarkQueries, by_hand_a_query_of_zeros) {
  const GatheredResult result = same_on_any_ranks(by_hand(1, {0.0f, 0.0f}));
  const double mass = 2.0 * std::sqrt(3.0);
  EXPECT_NEAR(result.lse[2], std::log(mass + 1.0), 1e-6);
  EXPECT_NEAR(result.out[2], mass / (mass + 1.0) * 3.0 / 4.0, 1e-6);
}

// Two heads of one kv head with queries of their own, the same for both chunks.
TEST(LandmarkQueries, by_hand_one_query_a_head_for_all_chunks) {
  const GatheredResult result = same_on_any_ranks(by_hand(2, {1.0f, 0.0f, 1.0f, 0.0f}));
  EXPECT_NEAR(result.lse[4], std::log(5.0), 1e-6);
  EXPECT_NEAR(result.lse[5], std::log(2.0 * std::sqrt(3.0) + 1.0), 1e-6);
}

// A large one: p is the key with the largest component, k' = ln 3, b' = 0, the mass is taken for 3.
TEST(LandmarkQueries, by_hand_one_query_that_looks_at_one_key) {
  const GatheredResult result = same_on_any_ranks(by_hand(1, {100.0f, 100.0f}));
  EXPECT_NEAR(result.lse[2], std::log(4.0), 1e-6);
  EXPECT_NEAR(result.out[2], 3.0 / 4.0 * 3.0 / 4.0, 1e-6);
}

// Documents of 5, 1 and 4 tokens, chunks of 2: chunks 0, 1, 4 and 5 of 6 are full.
struct LayerOnDisk {
  TemporaryFolder folder;
  std::string path;
  std::vector<float> of_chunks = normal_floats(4 * 2 * 4, 1);
  std::vector<float> of_all = normal_floats(2 * 4, 2);

  explicit LayerOnDisk(std::int64_t full_chunks = 4, const char* dtype = "F32")
      : path(folder.file("layer.safetensors")) {
    const std::vector<kvstore::TensorToWrite> tensors = {{"q", "F32", {10, 2, 4}},
                                                         {"k", "F32", {10, 1, 4}},
                                                         {"v", "F32", {10, 1, 4}},
                                                         {"chunk_landmark_q", "F32", {full_chunks, 2, 4}},
                                                         {"shared_landmark_q", dtype, {2, 4}}};
    auto writer = kvstore::SafetensorsWriter::create(path, tensors, {{"chunk_size", "2"}});
    const auto write = [&](const char* name, std::int64_t rows, const std::vector<float>& values) {
      writer.write_rows(name, {0, rows}, std::as_bytes(std::span(values)));
    };
    write("q", 10, normal_floats(80, 3));
    write("k", 10, normal_floats(40, 4));
    write("v", 10, normal_floats(40, 5));
    of_chunks.resize(static_cast<std::size_t>(full_chunks * 8));
    write("chunk_landmark_q", full_chunks, of_chunks);
    if (std::string(dtype) == "F32") write("shared_landmark_q", 2, of_all);
    writer.flush();
    writer.commit();
  }

  runtime::LayerFile open() const {
    runtime::LayerOverrides overrides;
    overrides.cu_seqlens = {0, 5, 6, 10};
    return {path, overrides};
  }
  std::string refusal(LandmarkQuery from) const {
    return refusal_of([&] {
      runtime::LayerFile file = open();
      file.take_landmark_queries(from);
      const partition::SequenceGrid grid(file.problem(), file.policy());
      file.load(partition::make_layout(grid, 1, partition::Balance::kContiguous), RankId(0));
    });
  }
};

// The row of the tensor that a chunk has, or -1.
constexpr std::array<std::int64_t, 6> kRowOfChunk = {0, 1, -1, -1, 2, 3};

TEST(LandmarkQueries, every_rank_reads_those_of_its_full_chunks) {
  const LayerOnDisk layer;
  for (const LandmarkQuery from : {LandmarkQuery::kChunk, LandmarkQuery::kShared}) {
    runtime::LayerFile file = layer.open();
    file.take_landmark_queries(from);
    const partition::SequenceGrid grid(file.problem(), file.policy());
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const partition::Layout layout = partition::make_layout(grid, ranks, partition::Balance::kZigzag);
      for (int rank = 0; rank < ranks; ++rank) {
        const runtime::LayerShard shard = file.load(layout, RankId(rank));
        const auto& chunks = layout.chunks_of(RankId(rank));
        const RowsView queries = shard.landmark_queries();
        ASSERT_EQ(queries.rows, std::ssize(chunks));
        for (std::int64_t slot = 0; slot < queries.rows; ++slot) {
          const std::int64_t row =
              kRowOfChunk[static_cast<std::size_t>(chunks[static_cast<std::size_t>(slot)].value())];
          std::vector<float> got(8), want(8, 0.0f);
          queries.load(slot, 0, got.data());
          queries.load(slot, 1, got.data() + 4);
          if (row >= 0 && from == LandmarkQuery::kChunk)
            std::copy_n(layer.of_chunks.begin() + row * 8, 8, want.begin());
          if (row >= 0 && from == LandmarkQuery::kShared) want = layer.of_all;
          EXPECT_EQ(got, want) << ranks << " ranks, rank " << rank << " slot " << slot;
        }
      }
    }
  }
}

TEST(LandmarkQueries, what_does_not_fit_is_named) {
  EXPECT_EQ(LayerOnDisk().refusal(LandmarkQuery::kChunk), "");
  EXPECT_EQ(LayerOnDisk(3).refusal(LandmarkQuery::kSlot), "");
  const std::string shape = LayerOnDisk(3).refusal(LandmarkQuery::kChunk);
  EXPECT_NE(shape.find("tensor chunk_landmark_q has shape [3, 2, 4], not [4, 2, 4]"), std::string::npos) << shape;
  const std::string dtype = LayerOnDisk(4, "BF16").refusal(LandmarkQuery::kShared);
  EXPECT_NE(dtype.find("tensor shared_landmark_q has dtype BF16, but q has F32"), std::string::npos) << dtype;
}

// A landmark query turns as a row at its chunk's last slot does.
TEST(LandmarkQueries, are_rotated_by_the_position_of_the_last_slot) {
  AttentionProblem problem = problem_of(70, 16, 2, 1, 32, DType::kFloat32);
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 37, 70};
  TestLayer layer = random_layer(problem, {.window = 16, .topk = 2}, 4);
  give_queries(layer, true, 5);
  const partition::SequenceGrid grid(problem, layer.policy);
  kernels::PositionEncoding encoding;
  encoding.kind = kernels::PositionKind::kRope;
  const partition::Layout layout = partition::make_layout(grid, 2, partition::Balance::kZigzag);
  for (const RankId rank : {RankId(0), RankId(1)}) {
    runtime::LayerShard shard = layer.shard(layout, rank);
    const auto positions = runtime::positions_in_documents(problem, layout.tokens_of(rank));
    runtime::rotate_landmark_queries(encoding, grid, layout, rank, positions, shard, 1);
    for (const ChunkId chunk : layout.chunks_of(rank)) {
      // With slots the last slot of a full chunk stands at the position of the token behind it: 15 a chunk.
      const std::int64_t in_document = chunk.value() - grid.document_of(chunk).chunks.begin.value();
      const bool full = grid.tokens_of(chunk).size() == 16;
      const std::int64_t position = 15 * in_document + (full ? 15 : grid.tokens_of(chunk).size() - 1);
      const std::size_t bytes = layer.landmark_q.size() / static_cast<std::size_t>(grid.chunk_count());
      std::vector<std::byte> want(layer.landmark_q.begin(),
                                  layer.landmark_q.begin() + static_cast<std::ptrdiff_t>(bytes));
      const RowsView row{want.data(), problem.dtype, 1, 2, 32};
      kernels::rotate(encoding, kernels::Side::kQuery, row, std::array{position}, want, 1);
      EXPECT_EQ(std::memcmp(shard.landmark_queries().row(layout.slot(chunk), 0), want.data(), bytes), 0)
          << "chunk " << chunk.value();
    }
  }
}

}  // namespace
}  // namespace ringmark::test
