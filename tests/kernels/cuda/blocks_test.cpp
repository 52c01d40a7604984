#include "kernels/cuda/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {
namespace {

// What pack_blocks must write for some chunks in some order, byte for byte.
std::vector<std::byte> packed_on_host(const AttentionCase& c, const std::vector<std::int32_t>& chunks,
                                      const std::vector<std::int32_t>& slots, BlockOrder order) {
  const BlockShape shape = BlockShape::of(c.problem);
  const std::int64_t element = size_of(shape.dtype);
  std::vector<std::byte> arena(chunks.size() * static_cast<std::size_t>(c.problem.kv_heads * shape.bytes()));
  std::byte* part = arena.data();
  for (std::size_t n = 0; n < chunks.size(); ++n) {
    const std::int64_t first = c.grid.tokens_of(ChunkId(chunks[n])).begin.value();
    for (std::int64_t head = 0; head < c.problem.kv_heads; ++head) {
      for (const RowsView& rows : {c.keys.view(), c.values.view()}) {
        for (std::int64_t slot = 0; slot < slots[n]; ++slot) {
          for (std::int64_t channel = 0; channel < shape.head_dim; ++channel) {
            const std::int64_t offset = order == BlockOrder::kSwizzled
                                            ? swizzled_offset(shape.chunk_size, slot, channel)
                                            : (slot * shape.head_dim + channel) * element;
            const std::byte* from = rows.row(first + slot, head) + channel * element;
            if (order == BlockOrder::kSwizzled && rows.data == c.values.view().data) {
              float value;  // V stands in fp16
              widen(from, shape.dtype, 1, &value);
              narrow(&value, DType::kFloat16, 1, part + offset);
            } else {
              std::memcpy(part + offset, from, static_cast<std::size_t>(element));
            }
          }
        }
        part += shape.value_offset();
      }
    }
  }
  return arena;
}

void expect_packed(const AttentionCase& c, const std::vector<std::int32_t>& chunks, BlockOrder order) {
  const ringmark::cuda::Stream stream;
  std::vector<std::int64_t> first_rows;
  std::vector<std::int32_t> slots;
  const std::vector<ChunkGeometry> geometry = chunk_geometry(c.grid, c.policy);
  for (const std::int32_t chunk : chunks) {
    first_rows.push_back(c.grid.tokens_of(ChunkId(chunk)).begin.value());
    slots.push_back(geometry[static_cast<std::size_t>(chunk)].slots_end);
  }
  const std::vector<std::byte> expected = packed_on_host(c, chunks, slots, order);
  const auto keys = upload(c.keys.view(), stream), values = upload(c.values.view(), stream);
  const auto device_first_rows = upload(first_rows, stream);
  const auto device_slots = upload(slots, stream);
  ringmark::cuda::Buffer<std::byte> arena(static_cast<std::int64_t>(expected.size()));
  arena.fill_bytes(0xAB, stream);
  ringmark::cuda::Buffer<std::int32_t> beyond_fp16(1);
  beyond_fp16.fill_bytes(0, stream);
  pack_blocks(LayerShape::of(c.problem, c.policy, c.grid), keys.data(), values.data(), device_first_rows.data(),
              device_slots.data(), static_cast<std::int64_t>(chunks.size()), order, arena.data(), beyond_fp16.data(),
              stream);
  EXPECT_EQ(download(beyond_fp16, stream)[0], 0);
  const std::vector<std::byte> got = download(arena, stream);
  const auto [at, wanted] = std::mismatch(got.begin(), got.end(), expected.begin());
  ASSERT_TRUE(at == got.end()) << "byte " << at - got.begin() << " of " << got.size() << ": got "
                               << static_cast<int>(*at) << ", want " << static_cast<int>(*wanted) << "; head_dim "
                               << c.problem.head_dim << ", chunk_size " << c.problem.chunk_size;
}

std::vector<std::int32_t> shuffled_chunks(const AttentionCase& c, std::mt19937_64& random) {
  std::vector<std::int32_t> chunks(static_cast<std::size_t>(c.grid.chunk_count()));
  std::iota(chunks.begin(), chunks.end(), 0);
  std::shuffle(chunks.begin(), chunks.end(), random);
  chunks.resize(std::max<std::size_t>(1, chunks.size() * 2 / 3));
  return chunks;
}

TEST(CudaBlocks, hold_the_rows_of_their_chunks_and_zeros) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(31);
  for (int trial = 0; trial < 60; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, random_policy(random, problem), random());
    expect_packed(c, shuffled_chunks(c, random), BlockOrder::kPlain);
  }
}

TEST(CudaBlocks, swizzled_stand_as_the_tensor_core_kernels_read_them) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  std::mt19937_64 random(32);
  for (int trial = 0; trial < 40; ++trial) {
    AttentionProblem problem = random_problem(random);
    problem.chunk_size = pick<std::int64_t>(random, {8, 64, 72});
    problem.head_dim = pick<std::int64_t>(random, {64, 128});
    problem.dtype = pick<DType>(random, {DType::kBfloat16, DType::kFloat16});
    const AttentionCase c(problem, random_policy(random, problem), random());
    expect_packed(c, shuffled_chunks(c, random), BlockOrder::kSwizzled);
  }
}

// 65504 is the largest number of fp16.
TEST(CudaBlocks, values_beyond_fp16_are_told) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  const ringmark::cuda::Stream stream;
  AttentionProblem problem;
  problem.tokens = 64;
  problem.head_dim = 64;
  const AttentionPolicy policy;
  const partition::SequenceGrid grid(problem, policy);
  const auto keys = upload(std::vector<std::uint16_t>(64 * 64, 0x3F80), stream);
  const auto first_row = upload(std::vector<std::int64_t>{0}, stream);
  const auto slots = upload(std::vector<std::int32_t>{63}, stream);
  ringmark::cuda::Buffer<std::byte> arena(2 * 64 * 128);
  const auto told = [&](std::size_t element, std::uint16_t bits) {
    std::vector<std::uint16_t> values(64 * 64, 0x3F80);
    values[element] = bits;
    const auto device = upload(values, stream);
    ringmark::cuda::Buffer<std::int32_t> beyond_fp16(1);
    beyond_fp16.fill_bytes(0, stream);
    pack_blocks(LayerShape::of(problem, policy, grid), reinterpret_cast<const std::byte*>(keys.data()),
                reinterpret_cast<const std::byte*>(device.data()), first_row.data(), slots.data(), 1,
                BlockOrder::kSwizzled, arena.data(), beyond_fp16.data(), stream);
    return download(beyond_fp16, stream)[0];
  };
  EXPECT_EQ(told(62 * 64 + 63, 0x477F), 0);  // 65280
  EXPECT_EQ(told(62 * 64 + 63, 0x4780), 1);  // 65536
  EXPECT_EQ(told(5, 0xFF7F), 1);             // the lowest bf16
  EXPECT_EQ(told(5, 0x7FC0), 0);             // NaN stays one
  EXPECT_EQ(told(63 * 64, 0x4780), 0);       // not a key
}

}  // namespace
}  // namespace ringmark::kernels::cuda
