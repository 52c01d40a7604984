#include <gtest/gtest.h>

#include "kernels/cuda/attend.h"

namespace ringmark::kernels::cuda {
namespace {

LayerShape shape_of(std::int32_t group) {
  LayerShape shape;
  shape.group = group;
  return shape;
}

// Four heads a kv head: tiles of 32 queries, halves of 16, warps of 4. With turnover t the times stand as
// (1 + 15 t) / 407 to (1 + 3 t) / 222: equal at t = 0.0877, a ratio of 3.72.
TEST(ChooseUnionPath, cuts_tiles_finer_where_neighbours_agree_little) {
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(4), 1.0), Path::kHopper);
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(4), 1.62), Path::kHopper);
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(4), 3.6), Path::kHopper);
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(4), 3.8), Path::kMma);
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(4), 32.0), Path::kMma);
}

// Sixteen heads: a warp is one query, a half four. (1 + 3 t) / 407 to 1 / 222: equal at t = 0.2778, a ratio of 2.94.
TEST(ChooseUnionPath, knows_the_queries_of_a_tile) {
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(16), 2.9), Path::kHopper);
  EXPECT_EQ(choose_union_path(Path::kHopper, shape_of(16), 3.0), Path::kMma);
}

TEST(ChooseUnionPath, leaves_other_families_alone) {
  EXPECT_EQ(choose_union_path(Path::kMma, shape_of(4), 1.0), Path::kMma);
  EXPECT_EQ(choose_union_path(Path::kSimt, shape_of(4), 32.0), Path::kSimt);
}

}  // namespace
}  // namespace ringmark::kernels::cuda
