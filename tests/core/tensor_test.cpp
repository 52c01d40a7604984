#include "core/tensor.h"

#include <gtest/gtest.h>

#include "kernels/block_table.h"
#include "kvstore/block_store.h"

namespace ringmark {
namespace {

TEST(TensorView, strides_address_elements_and_rows) {
  int data[24];
  const TensorView<int, 3> view(data, {2, 3, 4});
  EXPECT_EQ(&view(1, 2, 3), data + 23);
  EXPECT_EQ(view.at(1), data + 12);
  EXPECT_EQ(view.at(1, 2), data + 20);
  const TensorView<int, 2> transposed(data, {3, 2}, {1, 12});
  EXPECT_EQ(&transposed(2, 1), data + 14);
}

// bugs.md 41: offsets past 2^31 elements, without the memory.
TEST(TensorView, offsets_are_64_bit) {
  // An address that is never read: only its arithmetic is.  NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* base = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
  const TensorView<char, 3> view(base, {20'000'001, 8, 128});
  EXPECT_EQ(view.at(20'000'000, 7, 127) - base, 20'000'000LL * 1024 + 7 * 128 + 127);
  const RowsView rows{reinterpret_cast<const std::byte*>(base), DType::kBfloat16, 20'000'001, 8, 128};
  EXPECT_EQ(rows.row(20'000'000, 7) - rows.data, (20'000'000LL * 1024 + 7 * 128) * 2);
}

TEST(BlockStore, offsets_are_64_bit) {
  AttentionProblem problem;
  problem.heads = problem.kv_heads = 8;
  problem.head_dim = 128;
  problem.chunk_size = 64;
  EXPECT_EQ(kvstore::BlockStore::offset_of(problem, 20'000'000, 3), (20'000'000LL * 8 + 3) * 2 * 64 * 128 * 2);
}

}  // namespace
}  // namespace ringmark
