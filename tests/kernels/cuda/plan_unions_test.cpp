#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/attend.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {
namespace {

struct PlanCase {
  std::int32_t group;
  std::int32_t kv_heads;
  std::int32_t topk;
  std::int32_t chunk_count;
  std::int64_t row_count;
  int new_in;  // one in so many choices differs from the row before
};

LayerShape shape_of(const PlanCase& c) {
  LayerShape shape;
  shape.group = c.group;
  shape.kv_heads = c.kv_heads;
  shape.heads = c.group * c.kv_heads;
  shape.topk = c.topk;
  shape.chunk_count = c.chunk_count;
  return shape;
}

// Ascending ids, -1 behind them. Some rows choose less than they may.
std::vector<std::int32_t> random_selection(const PlanCase& c, std::mt19937_64& random) {
  std::vector<std::int32_t> selection;
  std::vector<std::set<std::int32_t>> chosen(static_cast<std::size_t>(c.kv_heads));
  for (std::int64_t row = 0; row < c.row_count; ++row) {
    for (auto& chunks : chosen) {
      std::erase_if(chunks, [&](std::int32_t) { return random() % static_cast<std::uint64_t>(c.new_in) == 0; });
      const std::int32_t some = random() % 20 == 0 ? static_cast<std::int32_t>(random() % 64) : c.topk;
      const auto wanted = static_cast<std::size_t>(std::min({some, c.topk, c.chunk_count}));
      while (chunks.size() > wanted) chunks.erase(chunks.begin());
      while (chunks.size() < wanted) {
        chunks.insert(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(c.chunk_count)));
      }
      selection.insert(selection.end(), chunks.begin(), chunks.end());
      selection.insert(selection.end(), static_cast<std::size_t>(c.topk) - chunks.size(), -1);
    }
  }
  return selection;
}

using Members = std::array<std::uint64_t, 2>;

std::map<std::int32_t, Members> union_of(const PlanCase& c, const std::vector<std::int32_t>& selection, RowRange rows,
                                         std::int64_t tile, std::int32_t kv_head) {
  std::map<std::int32_t, Members> items;
  const std::int64_t tile_queries = 128 / c.group, half = tile_queries / 2;
  for (std::int64_t query = 0; query < tile_queries; ++query) {
    const std::int64_t row = rows.begin + tile * tile_queries + query;
    if (row >= rows.end) break;
    for (std::int64_t slot = 0; slot < c.topk; ++slot) {
      const std::int32_t chunk = selection[static_cast<std::size_t>((row * c.kv_heads + kv_head) * c.topk + slot)];
      if (chunk >= 0) items[chunk][static_cast<std::size_t>(query / half)] |= std::uint64_t{1} << query % half;
    }
  }
  return items;
}

// The first difference, or nothing.
std::string difference(const PlanCase& c, const std::vector<std::int32_t>& selection, RowRange rows,
                       const std::vector<UnionItem>& items, const std::vector<std::int64_t>& offsets) {
  std::int64_t next = 0;
  for (std::size_t x = 0; x + 1 < offsets.size(); ++x) {
    const auto tile = static_cast<std::int64_t>(x) / c.kv_heads;
    const auto kv_head = static_cast<std::int32_t>(static_cast<std::int64_t>(x) % c.kv_heads);
    const std::string where = "tile " + std::to_string(tile) + " kv head " + std::to_string(kv_head);
    if (offsets[x] != next) {
      return where + ": offset " + std::to_string(offsets[x]) + ", want " + std::to_string(next);
    }
    for (const auto& [chunk, members] : union_of(c, selection, rows, tile, kv_head)) {
      if (next >= static_cast<std::int64_t>(items.size())) return where + ": too few items";
      const UnionItem& item = items[static_cast<std::size_t>(next++)];
      if (item.chunk != chunk) {
        return where + ": chunk " + std::to_string(item.chunk) + ", want " + std::to_string(chunk);
      }
      if (item.members[0] != members[0] || item.members[1] != members[1]) {
        return where + ", chunk " + std::to_string(chunk) + ": members " + std::to_string(item.members[0]) + " " +
               std::to_string(item.members[1]) + ", want " + std::to_string(members[0]) + " " +
               std::to_string(members[1]);
      }
    }
  }
  return offsets.back() == next ? "" : "the last offset is " + std::to_string(offsets.back());
}

TEST(PlanUnions, match_plain_sets) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  const std::vector<PlanCase> cases = {
      {4, 8, 16, 16384, 1000, 50}, {4, 8, 64, 16384, 515, 20},   {1, 2, 64, 300, 700, 5},  {2, 3, 5, 40, 333, 3},
      {8, 1, 32, 70000, 257, 2},   {16, 4, 16, 2097152, 101, 1}, {4, 2, 1, 1000, 400, 4},  {4, 2, 33, 33, 90, 10},
      {1, 1, 64, 2097152, 128, 1}, {64, 2, 16, 500, 37, 3},      {4, 1, 64, 5000, 200, 3}, {4, 8, 16, 3, 64, 2},
  };
  ringmark::cuda::Stream stream;
  UnionPlanner planner;
  std::mt19937_64 random(3);
  for (std::size_t n = 0; n < cases.size(); ++n) {
    const PlanCase& c = cases[n];
    const std::vector<std::int32_t> selection = random_selection(c, random);
    const auto device_selection = upload(selection, stream);
    for (const RowRange rows : {RowRange{0, c.row_count}, RowRange{c.row_count / 3, c.row_count - 1}, RowRange{7, 7}}) {
      const UnionPlan plan = planner.plan(shape_of(c), device_selection.data(), rows, stream);
      const std::int64_t tile_queries = 128 / c.group;
      ASSERT_EQ(plan.tile_queries, tile_queries);
      ASSERT_EQ(plan.tiles, (rows.size() + tile_queries - 1) / tile_queries);
      std::vector<std::int64_t> offsets(static_cast<std::size_t>(plan.tiles * c.kv_heads + 1));
      std::vector<UnionItem> items(static_cast<std::size_t>(planner.items()));
      ringmark::cuda::check(cudaMemcpyAsync(offsets.data(), plan.offsets, offsets.size() * sizeof(std::int64_t),
                                            cudaMemcpyDeviceToHost, stream),
                            "fetch offsets");
      ringmark::cuda::check(
          cudaMemcpyAsync(items.data(), plan.items, items.size() * sizeof(UnionItem), cudaMemcpyDeviceToHost, stream),
          "fetch items");
      stream.wait();
      ASSERT_EQ(difference(c, selection, rows, items, offsets), "")
          << "case " << n << ", rows " << rows.begin << " to " << rows.end;
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
