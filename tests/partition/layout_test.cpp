#include "partition/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ringmark::partition {
namespace {

SequenceGrid grid_of(std::int64_t tokens, std::int64_t chunk_size, std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  problem.cu_seqlens = std::move(cu_seqlens);
  problem.validate();
  AttentionPolicy policy;
  policy.window = 0;
  return {problem, policy};
}

std::vector<std::int64_t> owners(const Layout& layout, std::int64_t chunks) {
  std::vector<std::int64_t> owner;
  for (std::int64_t c = 0; c < chunks; ++c) owner.push_back(layout.owner(ChunkId(c)).value());
  return owner;
}

TEST(Layout, deals_by_hand) {
  EXPECT_EQ(owners(make_layout(grid_of(8, 1), 2, Balance::kContiguous), 8),
            (std::vector<std::int64_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(owners(make_layout(grid_of(8, 1), 2, Balance::kZigzag), 8),
            (std::vector<std::int64_t>{0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(owners(make_layout(grid_of(8, 1), 4, Balance::kZigzag), 8),
            (std::vector<std::int64_t>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(owners(make_layout(grid_of(8, 1), 3, Balance::kRotate), 8),
            (std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1}));
}

// However far the documents have grown, no rank holds more than one chunk a document above its share.
TEST(Layout, rotation_fills_all_ranks_alike) {
  const SequenceGrid grid = grid_of(300, 4, {0, 101, 130, 300});
  for (int ranks = 1; ranks <= 7; ++ranks) {
    const Layout layout = make_layout(grid, ranks, Balance::kRotate);
    for (const Document& document : grid.documents()) {
      std::vector<std::int64_t> held(static_cast<std::size_t>(ranks), 0);
      for (ChunkId chunk = document.chunks.begin; chunk < document.chunks.end; ++chunk) {
        ++held[static_cast<std::size_t>(layout.owner(chunk).value())];
        const auto [least, most] = std::minmax_element(held.begin(), held.end());
        EXPECT_LE(*most - *least, 1) << ranks << " ranks, chunk " << chunk.value();
      }
    }
  }
}

// 10 tokens in chunks of 4, dealt 0, 1, 0; the first and the last chunk have no rows.
TEST(Layout, leaves_out_by_hand) {
  const SequenceGrid grid = grid_of(10, 4);
  const Layout whole = make_layout(grid, 2, Balance::kRotate);
  const Layout layout = leave_out(whole, {true, false, true});
  EXPECT_EQ(owners(layout, 3), owners(whole, 3));
  EXPECT_EQ(layout.chunks_of(RankId(0)), whole.chunks_of(RankId(0)));
  EXPECT_EQ(layout.slot(ChunkId(2)), 1);
  EXPECT_EQ(layout.token_count(RankId(0)), 0);
  EXPECT_EQ(layout.token_count(RankId(1)), 4);
  EXPECT_EQ(layout.token_count(), 4);
  EXPECT_TRUE(layout.token_runs(RankId(0)).empty());
  EXPECT_EQ(layout.tokens_of(RankId(1)), (std::vector<TokenId>{TokenId(4), TokenId(5), TokenId(6), TokenId(7)}));
  EXPECT_FALSE(layout.has_rows(ChunkId(0)));
  EXPECT_TRUE(layout.has_rows(ChunkId(1)));
  // Tokens 4 to 7 read their own chunk; with a window of 0 each may choose the chunk before.
  EXPECT_EQ(measure_balance(grid, layout).pairs, (std::vector<std::int64_t>{0, 8}));
}

// What is left of a shard keeps its order, without holes.
TEST(Layout, leaves_out_any_chunks) {
  const SequenceGrid grid = grid_of(300, 4, {0, 101, 130, 300});
  for (int ranks = 1; ranks <= 7; ++ranks) {
    const Layout whole = make_layout(grid, ranks, Balance::kZigzag);
    std::vector<bool> left_out(static_cast<std::size_t>(grid.chunk_count()));
    for (std::size_t c = 0; c < left_out.size(); ++c) left_out[c] = c * c % 7 < 3;
    const Layout layout = leave_out(whole, left_out);
    std::int64_t tokens = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<TokenId> expected;
      for (const TokenId token : whole.tokens_of(RankId(rank))) {
        if (!left_out[static_cast<std::size_t>(grid.chunk_of(token).value())]) expected.push_back(token);
      }
      EXPECT_EQ(layout.tokens_of(RankId(rank)), expected);
      for (std::size_t row = 0; row < expected.size(); ++row) {
        const ChunkId chunk = grid.chunk_of(expected[row]);
        EXPECT_EQ(layout.first_row(chunk) + (expected[row] - grid.tokens_of(chunk).begin),
                  static_cast<std::int64_t>(row));
      }
      tokens += static_cast<std::int64_t>(expected.size());
    }
    EXPECT_EQ(layout.token_count(), tokens);
  }
}

// bugs.md 12, 13, 14, 15, 20: any length, any rank count, empty documents: every token has one owner and one row.
TEST(Layout, covers_the_sequence_exactly_once) {
  std::vector<std::vector<std::int64_t>> documents = {{}, {0, 0, 64, 64, 100}, {0, 5, 6, 136}, {0, 2999}};
  for (std::int64_t tokens = 1; tokens <= 70; ++tokens) documents.push_back({0, tokens});
  documents.erase(documents.begin());
  for (const auto& cu_seqlens : documents) {
    for (const std::int64_t chunk_size : {1, 4, 64}) {
      const SequenceGrid grid = grid_of(cu_seqlens.back(), chunk_size, cu_seqlens);
      for (int ranks = 1; ranks <= 9; ++ranks) {
        for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
          const Layout layout = make_layout(grid, ranks, balance);
          std::vector<int> seen(static_cast<std::size_t>(cu_seqlens.back()), 0);
          for (int rank = 0; rank < ranks; ++rank) {
            const auto tokens = layout.tokens_of(RankId(rank));
            ASSERT_EQ(static_cast<std::int64_t>(tokens.size()), layout.token_count(RankId(rank)));
            for (std::size_t row = 0; row < tokens.size(); ++row) {
              ++seen[static_cast<std::size_t>(tokens[row].value())];
              const ChunkId chunk = grid.chunk_of(tokens[row]);
              ASSERT_EQ(layout.owner(chunk), RankId(rank));
              ASSERT_EQ(layout.first_row(chunk) + (tokens[row] - grid.tokens_of(chunk).begin),
                        static_cast<std::int64_t>(row));
            }
            for (const ChunkId chunk : layout.chunks_of(RankId(rank))) {
              ASSERT_EQ(layout.chunks_of(RankId(rank))[static_cast<std::size_t>(layout.slot(chunk))], chunk);
            }
          }
          for (const int count : seen) ASSERT_EQ(count, 1);
        }
      }
    }
  }
}

// bugs.md 18: a valid permutation may still be badly unbalanced.
TEST(Layout, zigzag_is_balanced) {
  struct Case {
    std::vector<std::int64_t> cu_seqlens;
    int ranks;
    double limit;
  };
  for (const Case& c : {Case{{0, 4, 16}, 2, 1.1}, Case{{0, 1, 2, 3, 1000}, 2, 1.02}, Case{{0, 1, 2, 3, 1000}, 4, 1.05},
                        Case{{0, 4096}, 4, 1.01}, Case{{0, 4096}, 7, 1.02}, Case{{0, 500, 510, 1000, 3000}, 3, 1.05}}) {
    const SequenceGrid grid = grid_of(c.cu_seqlens.back(), 1, c.cu_seqlens);
    const WorkBalance balance = measure_balance(grid, make_layout(grid, c.ranks, Balance::kZigzag));
    EXPECT_LE(balance.max_over_mean, c.limit) << "documents up to " << c.cu_seqlens.back() << " ranks " << c.ranks;
    EXPECT_GE(balance.max_over_mean, 1.0);
  }
  // One long document, contiguous: the last of 4 ranks has nearly 7/16 of the work, 1.75 times the mean.
  const SequenceGrid grid = grid_of(4096, 1);
  EXPECT_NEAR(measure_balance(grid, make_layout(grid, 4, Balance::kContiguous)).max_over_mean, 1.75, 0.01);
}

// Every query's chunks, scored or in its window, are counted.
TEST(WorkBalance, counts_every_query) {
  for (const std::int64_t window : {0, 1, 4, 5, 9, 100}) {
    for (const std::int64_t sinks : {0, 3, 9}) {
      AttentionProblem problem;
      problem.tokens = 70;
      problem.chunk_size = 4;
      problem.cu_seqlens = {0, 7, 7, 50, 70};
      const AttentionPolicy policy{window, 8, sinks, Scorer::kHils};
      const SequenceGrid grid(problem, policy);
      const Layout layout = make_layout(grid, 3, Balance::kZigzag);
      const WorkBalance balance = measure_balance(grid, layout);
      for (int rank = 0; rank < 3; ++rank) {
        std::int64_t pairs = 0;
        for (const TokenId query : layout.tokens_of(RankId(rank))) {
          pairs += (grid.window_of(query).size() + 3) / 4 + grid.eligible(query).size();
        }
        EXPECT_EQ(balance.pairs[static_cast<std::size_t>(rank)], pairs) << "W " << window << " sinks " << sinks;
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::partition
