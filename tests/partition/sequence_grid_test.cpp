#include "partition/sequence_grid.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringmark::partition {
namespace {

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, bool slots,
                            std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.chunk_size = chunk_size;
  problem.landmark_slots = slots;
  problem.cu_seqlens = std::move(cu_seqlens);
  problem.validate();
  return problem;
}

AttentionPolicy policy_of(std::int64_t window, std::int64_t sinks = 0) {
  AttentionPolicy policy;
  policy.window = window;
  policy.sinks = sinks;
  return policy;
}

Range<TokenId> tokens(std::int64_t begin, std::int64_t end) { return {TokenId(begin), TokenId(end)}; }
Range<ChunkId> chunks(std::int64_t begin, std::int64_t end) { return {ChunkId(begin), ChunkId(end)}; }

// By hand: S = 4, W = 4. Query 9: l = floor(6/4)*4 = 4, so keys 4..9; chunk 0 is eligible.
TEST(SequenceGrid, aligns_the_window_to_chunks) {
  const SequenceGrid grid(problem_of(12, 4, false), policy_of(4));
  EXPECT_EQ(grid.window_of(TokenId(9)), tokens(4, 10));
  EXPECT_EQ(grid.eligible(TokenId(9)), chunks(0, 1));
  EXPECT_EQ(grid.window_of(TokenId(11)), tokens(8, 12));
  EXPECT_EQ(grid.eligible(TokenId(11)), chunks(0, 2));
  EXPECT_EQ(grid.window_of(TokenId(2)), tokens(0, 3));
  EXPECT_TRUE(grid.eligible(TokenId(2)).empty());
}

// By hand: W = 0 is the current chunk up to the query.
TEST(SequenceGrid, window_zero_is_the_current_chunk) {
  const SequenceGrid grid(problem_of(12, 4, false), policy_of(0));
  EXPECT_EQ(grid.window_of(TokenId(8)), tokens(8, 9));
  EXPECT_EQ(grid.eligible(TokenId(8)), chunks(0, 2));
  EXPECT_EQ(grid.window_of(TokenId(7)), tokens(4, 8));
  EXPECT_EQ(grid.eligible(TokenId(7)), chunks(0, 1));
}

// By hand: S = 4 with landmark slots 3 and 7; 5 sinks swallow chunk 0 and the first token of chunk 1.
TEST(SequenceGrid, sinks_and_landmark_slots_are_no_ordinary_tokens) {
  const SequenceGrid grid(problem_of(14, 4, true), policy_of(1, 5));
  EXPECT_FALSE(grid.is_key(TokenId(3)));
  EXPECT_TRUE(grid.is_key(TokenId(13)));
  EXPECT_EQ(grid.keys_of(ChunkId(1)), tokens(5, 7));
  EXPECT_TRUE(grid.keys_of(ChunkId(0)).empty());
  EXPECT_FALSE(grid.has_landmark(ChunkId(0)));
  EXPECT_TRUE(grid.has_landmark(ChunkId(1)));
  EXPECT_FALSE(grid.has_landmark(ChunkId(3)));  // partial
  EXPECT_EQ(grid.eligible(TokenId(13)), chunks(1, 3));
  EXPECT_EQ(grid.sinks_of(TokenId(13)), tokens(0, 5));
  EXPECT_EQ(grid.sinks_of(TokenId(6)), tokens(0, 4));  // the fifth is inside the window
}

TEST(SequenceGrid, documents_have_their_own_chunks) {
  const SequenceGrid grid(problem_of(15, 4, false, {0, 5, 5, 15}), policy_of(0));
  EXPECT_EQ(grid.documents().size(), 2u);  // the empty one holds nothing
  EXPECT_EQ(grid.chunk_count(), 5);
  EXPECT_EQ(grid.tokens_of(ChunkId(1)), tokens(4, 5));
  EXPECT_EQ(grid.tokens_of(ChunkId(2)), tokens(5, 9));
  EXPECT_EQ(grid.chunk_of(TokenId(5)), ChunkId(2));
  EXPECT_EQ(grid.eligible(TokenId(14)), chunks(2, 4));
}

// By hand: W = 3 in chunks of 4, two sinks. Query 9 sees 0, 1 and 7..9; query 2 all up to itself; query 3 begins at 1,
// so that one sink is left below its window.
TEST(SequenceGrid, windows_may_begin_at_a_token) {
  AttentionPolicy policy = policy_of(3, 2);
  policy.topk = 0;
  policy.edge = WindowEdge::kToken;
  const SequenceGrid grid(problem_of(20, 4, false, {0, 10, 20}), policy);
  EXPECT_EQ(grid.window_of(TokenId(9)), tokens(7, 10));
  EXPECT_EQ(grid.sinks_of(TokenId(9)), tokens(0, 2));
  EXPECT_EQ(grid.window_of(TokenId(2)), tokens(0, 3));
  EXPECT_TRUE(grid.sinks_of(TokenId(2)).empty());
  EXPECT_EQ(grid.sinks_of(TokenId(3)), tokens(0, 1));
  EXPECT_EQ(grid.window_of(TokenId(10)), tokens(10, 11));  // the second document
  EXPECT_EQ(grid.window_of(TokenId(16)), tokens(14, 17));
  EXPECT_EQ(grid.sinks_of(TokenId(16)), tokens(10, 12));
  EXPECT_TRUE(grid.eligible(TokenId(9)).empty());
}

// By hand: segments of 5 and 3 tokens before them. Query 12 is in the segment that begins at 10: keys 7..12.
TEST(SequenceGrid, windows_may_begin_before_a_segment) {
  AttentionPolicy policy = policy_of(3);
  policy.topk = 0;
  policy.edge = WindowEdge::kSegment;
  policy.segment = 5;
  const SequenceGrid grid(problem_of(30, 4, false, {0, 17, 30}), policy);
  EXPECT_EQ(grid.window_of(TokenId(12)), tokens(7, 13));
  EXPECT_EQ(grid.window_of(TokenId(10)), tokens(7, 11));
  EXPECT_EQ(grid.window_of(TokenId(9)), tokens(2, 10));
  EXPECT_EQ(grid.window_of(TokenId(4)), tokens(0, 5));
  EXPECT_EQ(grid.window_of(TokenId(17)), tokens(17, 18));
  EXPECT_EQ(grid.window_of(TokenId(28)), tokens(24, 29));
  EXPECT_TRUE(grid.eligible(TokenId(12)).empty());
}

// Sinks, window and the keys of eligible chunks are disjoint, and cover every key when nothing lies between.
TEST(SequenceGrid, every_key_counts_exactly_once) {
  for (const std::int64_t chunk_size : {1, 3, 16}) {
    for (const bool slots : {false, true}) {
      if (slots && chunk_size == 1) continue;
      for (const std::int64_t window : {0, 1, 2, 16, 17, 200}) {
        for (const std::int64_t sinks : {0, 1, 15, 16, 20, 60}) {
          const SequenceGrid grid(problem_of(70, chunk_size, slots, {0, 7, 7, 50, 70}), policy_of(window, sinks));
          for (TokenId query(0); query < TokenId(70); ++query) {
            std::vector<int> seen(70, 0);
            const auto count = [&](Range<TokenId> range) {
              for (TokenId j = range.begin; j < range.end; ++j)
                seen[static_cast<std::size_t>(j.value())] += grid.is_key(j);
            };
            count(grid.sinks_of(query));
            count(grid.window_of(query));
            const Range<ChunkId> eligible = grid.eligible(query);
            for (ChunkId c = eligible.begin; c < eligible.end; ++c) {
              ASSERT_TRUE(grid.has_landmark(c));
              count(grid.keys_of(c));
            }
            const Document& document = grid.document_of(query);
            for (TokenId j(0); j < TokenId(70); ++j) {
              const bool visible = document.tokens.begin <= j && j <= query && grid.is_key(j);
              ASSERT_EQ(seen[static_cast<std::size_t>(j.value())], visible ? 1 : 0)
                  << "query " << query << " key " << j << " S " << chunk_size << " W " << window << " sinks " << sinks;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::partition
