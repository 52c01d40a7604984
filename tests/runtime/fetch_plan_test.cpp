#include "runtime/fetch_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/error.h"
#include "kernels/block_table.h"
#include "kvstore/block_store.h"
#include "partition/sequence_grid.h"

namespace ringmark::runtime {
namespace {

struct Setting {
  AttentionProblem problem;
  partition::SequenceGrid grid;
  partition::Layout layout;

  Setting(std::int64_t chunks, std::int64_t kv_heads, int ranks)
      : problem(make_problem(chunks, kv_heads)),
        grid(problem, AttentionPolicy{}),
        layout(partition::make_layout(grid, ranks, partition::Balance::kContiguous)) {}

  static AttentionProblem make_problem(std::int64_t chunks, std::int64_t kv_heads) {
    AttentionProblem problem;
    problem.tokens = chunks * 4;
    problem.chunk_size = 4;
    problem.heads = problem.kv_heads = kv_heads;
    problem.head_dim = 8;
    return problem;
  }
  std::int64_t block_bytes() const { return kernels::BlockShape::of(problem).bytes(); }
};

RowNeeds listed(const std::vector<std::vector<BlockId>>& rows) {
  return [&rows](std::int64_t row, std::vector<BlockId>& needs) {
    needs = rows[static_cast<std::size_t>(row)];
    return true;
  };
}

// By hand: rank 0 of 2 owns chunks 0..3; it needs 5, 4 (adjacent at their owner), its own 1, and 7.
TEST(FetchPlan, drops_own_blocks_dedups_and_coalesces) {
  const Setting s(8, 1, 2);
  const std::vector<std::vector<BlockId>> rows = {
      {{ChunkId(5), 0}, {ChunkId(1), 0}}, {{ChunkId(4), 0}, {ChunkId(5), 0}}, {{ChunkId(7), 0}}};
  const FetchPlan plan = plan_fetch(s.problem, s.layout, RankId(0), {0, 3}, listed(rows), 100 * s.block_bytes());
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_EQ(plan.blocks, 3);
  ASSERT_EQ(plan.waves[0].runs.size(), 2u);
  EXPECT_EQ(plan.waves[0].runs[0].blocks, (std::vector<BlockId>{{ChunkId(4), 0}, {ChunkId(5), 0}}));
  EXPECT_EQ(plan.waves[0].runs[0].offset, 0);
  EXPECT_EQ(plan.waves[0].runs[1].blocks, (std::vector<BlockId>{{ChunkId(7), 0}}));
  EXPECT_EQ(plan.waves[0].runs[1].offset, 3 * s.block_bytes());
}

TEST(FetchPlan, one_rank_fetches_nothing) {
  const Setting s(8, 2, 1);
  const std::vector<std::vector<BlockId>> rows = {{{ChunkId(5), 0}, {ChunkId(1), 1}}};
  const FetchPlan plan = plan_fetch(s.problem, s.layout, RankId(0), {0, 1}, listed(rows), 0);
  EXPECT_EQ(plan.blocks, 0);
  EXPECT_EQ(plan.slots, 0);
}

TEST(FetchPlan, names_the_budget_when_a_row_does_not_fit) {
  const Setting s(8, 1, 2);
  const std::vector<std::vector<BlockId>> rows = {{{ChunkId(4), 0}, {ChunkId(5), 0}, {ChunkId(6), 0}}};
  try {
    plan_fetch(s.problem, s.layout, RankId(0), {0, 1}, listed(rows), 5 * s.block_bytes());
    FAIL() << "a plan over budget was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find("fetch-mib"), std::string::npos);
  }
}

// Replays a plan slot by slot: when a wave is attended, every block that its rows need is in the slot it was read into,
// although the next wave's reads have already started.
void replay(const Setting& s, const FetchPlan& plan, const std::vector<std::vector<BlockId>>& rows, RankId rank,
            std::int64_t budget) {
  ASSERT_LE(plan.slots * s.block_bytes(), budget);
  std::vector<BlockId> slots(static_cast<std::size_t>(plan.slots), {ChunkId(-1), 0});
  const auto read = [&](const FetchWave& wave) {
    for (const FetchRun& run : wave.runs) {
      for (std::size_t n = 0; n < run.blocks.size(); ++n) {
        ASSERT_EQ(s.layout.owner(run.blocks[n].chunk), run.owner);
        ASSERT_EQ(run.offset + static_cast<std::int64_t>(n) * s.block_bytes(),
                  kvstore::BlockStore::offset_of(s.problem, s.layout.slot(run.blocks[n].chunk), run.blocks[n].kv_head));
        slots[static_cast<std::size_t>(run.slot) + n] = run.blocks[n];
      }
    }
  };
  std::int64_t next_row = 0;
  if (!plan.waves.empty()) read(plan.waves[0]);
  for (std::size_t w = 0; w < plan.waves.size(); ++w) {
    if (w + 1 < plan.waves.size()) read(plan.waves[w + 1]);
    const RowRange range = plan.waves[w].rows;
    ASSERT_EQ(range.begin, next_row);
    next_row = range.end;
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      for (const BlockId& block : rows[static_cast<std::size_t>(row)]) {
        if (s.layout.owner(block.chunk) == rank) continue;
        ASSERT_NE(std::find(slots.begin(), slots.end(), block), slots.end())
            << "row " << row << " chunk " << block.chunk;
      }
    }
  }
  ASSERT_EQ(next_row, static_cast<std::int64_t>(rows.size()));
}

TEST(FetchPlan, random_plans_replay) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const auto kv_heads = static_cast<std::int64_t>(1 + random() % 3);
    const Setting s(static_cast<std::int64_t>(5 + random() % 60), kv_heads, ranks);
    const RankId rank(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(ranks)));
    std::vector<std::vector<BlockId>> rows(random() % 3000);
    const std::size_t at_most = 1 + random() % 6;
    for (auto& row : rows) {
      for (std::size_t n = random() % (at_most + 1); n > 0; --n) {
        row.push_back({ChunkId(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(s.grid.chunk_count()))),
                       static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kv_heads))});
      }
    }
    const std::int64_t budget = static_cast<std::int64_t>(2 * at_most + random() % 40) * s.block_bytes();
    const FetchPlan plan =
        plan_fetch(s.problem, s.layout, rank, {0, static_cast<std::int64_t>(rows.size())}, listed(rows), budget);
    replay(s, plan, rows, rank, budget);
    if (HasFatalFailure()) return;
  }
}

// With room for all, a block is read once however many waves need it.
TEST(FetchPlan, reads_a_block_once_when_it_fits) {
  const Setting s(64, 1, 4);
  std::vector<std::vector<BlockId>> rows(5000);
  std::mt19937_64 random(5);
  std::set<std::int64_t> distinct;
  for (auto& row : rows) {
    const auto chunk = static_cast<std::int64_t>(random() % 64);
    row.push_back({ChunkId(chunk), 0});
    if (s.layout.owner(ChunkId(chunk)) != RankId(2)) distinct.insert(chunk);
  }
  const FetchPlan plan = plan_fetch(s.problem, s.layout, RankId(2), {0, 5000}, listed(rows), 200 * s.block_bytes());
  EXPECT_GT(plan.waves.size(), 3u);
  EXPECT_EQ(plan.blocks, static_cast<std::int64_t>(distinct.size()));
}

}  // namespace
}  // namespace ringmark::runtime
