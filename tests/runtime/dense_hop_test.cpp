#include "runtime/cuda/dense_hop.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/dense/prefill.h"

namespace ringmark::runtime::cuda {
namespace {

using partition::Balance;
using partition::SequenceGrid;

struct Case {
  Case(AttentionProblem of, int rank_count, Balance balance)
      : problem(std::move(of)),
        ranks(rank_count),
        grid(problem, dense::whole_window(problem)),
        layout(partition::make_layout(grid, ranks, balance)),
        geometry(kernels::cuda::chunk_geometry(grid, dense::whole_window(problem))) {}

  DenseHop plan(int rank, int owner) const { return plan_dense_hop(grid, layout, RankId(rank), owner, geometry); }

  AttentionProblem problem;
  int ranks;
  SequenceGrid grid;
  partition::Layout layout;
  std::vector<kernels::cuda::ChunkGeometry> geometry;
};

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  return problem;
}

void expect_row(const DenseHop& hop, std::size_t row, std::int32_t first, std::int32_t chunk, std::int32_t visible) {
  EXPECT_EQ(hop.rows[row].window_first, first) << row;
  EXPECT_EQ(hop.rows[row].chunk, chunk) << row;
  EXPECT_EQ(hop.rows[row].visible, visible) << row;
}

// Four chunks of four tokens: rank 0 has chunks 0 and 3, rank 1 has 1 and 2.
TEST(DenseHop, zigzag_on_two_ranks) {
  const Case zigzag(problem_of(16, 4), 2, Balance::kZigzag);
  const DenseHop own = zigzag.plan(0, 0);
  EXPECT_EQ(own.keys, (std::vector{ChunkId(0), ChunkId(3)}));
  EXPECT_EQ(own.seeing, (std::vector{RowRange{0, 8}}));
  expect_row(own, 1, 0, 0, 2);
  expect_row(own, 5, 0, 1, 2);
  const DenseHop middle = zigzag.plan(0, 1);  // chunk 0 comes before both
  EXPECT_EQ(middle.keys, (std::vector{ChunkId(1), ChunkId(2)}));
  EXPECT_EQ(middle.seeing, (std::vector{RowRange{4, 8}}));
  expect_row(middle, 4, 0, 1, 4);
  expect_row(middle, 7, 0, 1, 4);
  const DenseHop outer = zigzag.plan(1, 0);  // nobody here sees chunk 3
  EXPECT_EQ(outer.keys, (std::vector{ChunkId(0)}));
  EXPECT_EQ(outer.seeing, (std::vector{RowRange{0, 8}}));
  expect_row(outer, 0, 0, 0, 4);
}

// The tokens that the kernels take for visible, in all hops.
std::vector<std::vector<std::int64_t>> seen_by_rows(const Case& of, int rank) {
  std::vector<std::vector<std::int64_t>> seen(static_cast<std::size_t>(of.layout.token_count(RankId(rank))));
  for (int owner = 0; owner < of.ranks; ++owner) {
    const DenseHop hop = of.plan(rank, owner);
    EXPECT_EQ(hop.chunks.size(), hop.keys.size());
    for (const RowRange range : hop.seeing) {
      EXPECT_FALSE(range.empty());
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const auto& geometry = hop.rows[static_cast<std::size_t>(row)];
        EXPECT_LE(geometry.window_first, geometry.chunk);
        for (std::int32_t place = geometry.window_first; place <= geometry.chunk; ++place) {
          const std::int32_t slots_end = hop.chunks[static_cast<std::size_t>(place)].slots_end;
          const std::int32_t slots = place < geometry.chunk ? slots_end : std::min(geometry.visible, slots_end);
          const TokenId first = of.grid.tokens_of(hop.keys[static_cast<std::size_t>(place)]).begin;
          for (std::int32_t slot = 0; slot < slots; ++slot) {
            seen[static_cast<std::size_t>(row)].push_back((first + slot).value());
          }
        }
      }
    }
  }
  for (auto& tokens : seen) std::sort(tokens.begin(), tokens.end());
  return seen;
}

void expect_every_key_once(const Case& of) {
  for (int rank = 0; rank < of.ranks; ++rank) {
    const auto seen = seen_by_rows(of, rank);
    const std::vector<TokenId> tokens = of.layout.tokens_of(RankId(rank));
    ASSERT_EQ(seen.size(), tokens.size());
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      std::vector<std::int64_t> keys;
      for (TokenId key = of.grid.document_of(tokens[row]).tokens.begin; key <= tokens[row]; ++key) {
        if (of.grid.is_key(key)) keys.push_back(key.value());
      }
      EXPECT_EQ(seen[row], keys) << "token " << tokens[row].value() << " on rank " << rank << " of " << of.ranks;
    }
  }
}

TEST(DenseHop, every_row_sees_every_key_once) {
  AttentionProblem packed = problem_of(150, 8);
  packed.landmark_slots = true;
  packed.cu_seqlens = {0, 3, 4, 61, 61, 150};
  for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
    for (const int ranks : {1, 2, 3, 7}) {
      expect_every_key_once(Case(problem_of(1, 4), ranks, balance));
      expect_every_key_once(Case(problem_of(75, 4), ranks, balance));
      expect_every_key_once(Case(packed, ranks, balance));
    }
  }
}

}  // namespace
}  // namespace ringmark::runtime::cuda
