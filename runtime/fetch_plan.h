// The fetch planner: from the blocks that each row needs to the waves in which they are read. Pure: it can be tested
// without ranks and memory.
//
// A wave is a range of rows and the reads that must be complete before the rows are attended. Received blocks live in
// the slots of one arena; a block stays in its slot while it may be needed again and there is room, so it is usually
// read once a rank. While wave w is attended the reads of wave w+1 are already running, hence a wave never overwrites a
// block that the wave before it needs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "partition/layout.h"

namespace ringmark::runtime {

struct BlockId {
  ChunkId chunk;
  std::int64_t kv_head = 0;
  auto operator<=>(const BlockId&) const = default;
};

// Adjacent blocks of one owner into adjacent slots: one read.
struct FetchRun {
  RankId owner;
  std::int64_t offset = 0;  // bytes in the owner's block arena
  std::int64_t slot = 0;    // first arena slot
  std::vector<BlockId> blocks;
};

struct FetchWave {
  RowRange rows;
  std::vector<FetchRun> runs;
};

struct FetchPlan {
  std::vector<FetchWave> waves;  // cover the rows, ascending
  std::int64_t slots = 0;        // arena size in blocks
  std::int64_t blocks = 0;       // blocks read in all waves
};

// Appends the blocks that a row needs, in any order, duplicates and own blocks allowed. Returns false when they are
// those of the row that was asked about before, which saves the planner the work.
using RowNeeds = std::function<bool(std::int64_t row, std::vector<BlockId>& needs)>;

// Rows of a wave, unless the arena cuts it shorter: enough waves that most of the fetch hides behind attention.
std::int64_t rows_of_wave(std::int64_t rows, std::int64_t shortest = 1024);

// rows     some rows of this rank; or groups of rows, when the needs are known by group
// budget   bytes of the arena; two consecutive waves must fit
// shortest a wave is not cut shorter than this, unless the arena demands it
// Throws Error(kBadInput) naming fetch-mib when one row alone needs more than half the budget.
FetchPlan plan_fetch(const AttentionProblem& problem, const partition::Layout& layout, RankId rank, RowRange rows,
                     const RowNeeds& needs, std::int64_t budget, std::int64_t shortest = 1024);

}  // namespace ringmark::runtime
