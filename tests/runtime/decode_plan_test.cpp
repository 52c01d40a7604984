#include "runtime/decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "partition/sequence_grid.h"

namespace ringmark::runtime {
namespace {

// Three ranks; chunk c belongs to rank c % 3. Rows 0 and 1 live on rank 0, row 2 on rank 1.
struct Case {
  Case() : selection(3, 1, 3) {
    choose(0, {1, 4, 5});
    choose(1, {0, 1, 2});
    choose(2, {1, 3, 6});
    AttentionProblem problem;
    problem.tokens = 9;
    problem.chunk_size = 1;
    layout = partition::make_layout({problem, {}}, 3, partition::Balance::kRotate);
  }
  void choose(std::int64_t row, const std::vector<std::int32_t>& chunks) {
    std::copy(chunks.begin(), chunks.end(), selection.slots(row, 0).begin());
  }

  kernels::Selection selection;
  partition::Layout layout;
  std::vector<RankId> homes = {RankId(0), RankId(0), RankId(1)};
};

using Listed = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;  // chunk, rows

Listed listed(const Demands& demands) {
  Listed list;
  for (const BlockDemand& demand : demands) list.push_back({demand.block.chunk.value(), demand.rows});
  return list;
}

TEST(DecodePlan, both_sides_derive_the_same_demands) {
  const Case c;
  const auto wanted = demands_of_home(c.selection, c.homes, c.layout, RankId(0));
  EXPECT_EQ(listed(wanted[0]), Listed{});
  EXPECT_EQ(listed(wanted[1]), (Listed{{1, {0, 1}}, {4, {0}}}));
  EXPECT_EQ(listed(wanted[2]), (Listed{{2, {1}}, {5, {0}}}));
  for (std::int64_t home = 0; home < 3; ++home) {
    const auto of_home = demands_of_home(c.selection, c.homes, c.layout, RankId(home));
    for (std::int64_t owner = 0; owner < 3; ++owner) {
      const auto on_owner = demands_on_owner(c.selection, c.homes, c.layout, RankId(owner));
      EXPECT_EQ(listed(of_home[static_cast<std::size_t>(owner)]), listed(on_owner[static_cast<std::size_t>(home)]));
    }
  }
}

// Block 1 is wanted by two rows; row 0 also wants block 4, so that its partial stands for both.
TEST(DecodePlan, pushes_until_they_have_cost_a_pull) {
  const Case c;
  const Demands demands = demands_of_home(c.selection, c.homes, c.layout, RankId(0))[1];
  const auto nothing = [](const BlockId&) { return false; };
  PushPlanner planner(Exchange::kAuto, {.pull = 2.0, .push = 1.0});
  EXPECT_EQ(planner.plan(demands, nothing), (std::vector<bool>{true, true}));    // paid: 1.5 and 0.5
  EXPECT_EQ(planner.plan(demands, nothing), (std::vector<bool>{false, true}));   // 3.0 buys block 1; block 4 at 1.0
  EXPECT_EQ(planner.plan(demands, nothing), (std::vector<bool>{true, true}));    // it was pushed out: from 0 again
  EXPECT_EQ(planner.plan(demands, nothing), (std::vector<bool>{false, false}));  // block 4 has reached 2.0
}

TEST(DecodePlan, what_is_here_is_neither_pushed_nor_paid_for) {
  const Case c;
  const Demands demands = demands_of_home(c.selection, c.homes, c.layout, RankId(0))[1];
  PushPlanner planner(Exchange::kAuto, {.pull = 1.5, .push = 1.0});
  const auto one = [](const BlockId& block) { return block.chunk == ChunkId(1); };
  EXPECT_EQ(planner.plan(demands, one), (std::vector<bool>{false, true}));   // row 0's partial is for block 4 alone
  EXPECT_EQ(planner.plan(demands, one), (std::vector<bool>{false, false}));  // 2.0
}

TEST(DecodePlan, forced) {
  const Case c;
  const Demands demands = demands_of_home(c.selection, c.homes, c.layout, RankId(0))[1];
  const auto everything = [](const BlockId&) { return true; };
  EXPECT_EQ(PushPlanner(Exchange::kPull, {0.0, 9.0}).plan(demands, everything), (std::vector<bool>{false, false}));
  EXPECT_EQ(PushPlanner(Exchange::kPush, {0.0, 9.0}).plan(demands, everything), (std::vector<bool>{true, true}));
}

TEST(DecodePlan, one_partial_a_row_and_kv_head) {
  const Case c;
  const Demands demands = demands_of_home(c.selection, c.homes, c.layout, RankId(0))[1];
  EXPECT_EQ(partials_of(demands, {true, true}), (std::vector<PartialId>{{0, 0}, {1, 0}}));
  EXPECT_EQ(partials_of(demands, {false, true}), (std::vector<PartialId>{{0, 0}}));
  EXPECT_EQ(partials_of(demands, {false, false}), std::vector<PartialId>{});
}

TEST(DecodePlan, part_of_a_selection_keeps_its_order) {
  const Case c;
  const auto part =
      part_of(c.selection, [](std::int64_t row, const BlockId& block) { return row == 0 && block.chunk > ChunkId(1); });
  EXPECT_EQ(part.chunks, (std::vector<std::int32_t>{4, 5, -1, -1, -1, -1, -1, -1, -1}));
}

// Rows 0 to 3 need {0,1}, {1,2}, {1,2}, {3}: with room for three blocks the cut is before row 3; blocks that do not
// count are free.
TEST(DecodePlan, cuts_rows_by_what_they_hold) {
  const std::vector<std::vector<std::int64_t>> of_row = {{1, 0}, {1, 2}, {2, 1}, {3}};
  const auto needs = [&](std::int64_t row, std::vector<BlockId>& blocks) {
    for (const std::int64_t chunk : of_row[static_cast<std::size_t>(row)]) blocks.push_back({ChunkId(chunk), 0});
  };
  const auto cuts = [&](std::int64_t capacity, std::int64_t free_chunk) {
    std::vector<std::pair<std::int64_t, std::size_t>> ends;  // end of the rows, blocks
    const auto counts = [&](const BlockId& block) { return block.chunk != ChunkId(free_chunk); };
    for (const HeldRows& part : cut_rows({0, 4}, needs, counts, capacity)) {
      ends.push_back({part.rows.end, part.needs.size()});
    }
    return ends;
  };
  using Ends = std::vector<std::pair<std::int64_t, std::size_t>>;
  EXPECT_EQ(cuts(4, -1), (Ends{{4, 4}}));
  EXPECT_EQ(cuts(3, -1), (Ends{{3, 3}, {4, 1}}));
  EXPECT_EQ(cuts(2, -1), (Ends{{1, 2}, {3, 2}, {4, 1}}));
  EXPECT_EQ(cuts(3, 3), (Ends{{4, 4}}));
}

}  // namespace
}  // namespace ringmark::runtime
