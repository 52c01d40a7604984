#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernels/cuda/score_case.h"

namespace ringmark::kernels::cuda {
namespace {

Lists score(const ScoreCase& c, const std::vector<std::int64_t>& cuts) {
  return score(mma::score_approximately, c, cuts);
}
Lists score(const ScoreCase& c) { return score(c, {0, c.shape.rows}); }

template <class Check>
void for_shapes(const Check& check) {
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t group : {1, 2, 4, 8, 16}) {
        for (const std::int64_t topk : {1, 16, 27, 28, 64}) {
          const Scorer scorer = (group + topk) % 2 == 0 ? Scorer::kHils : Scorer::kMean;
          const std::int64_t rows = topk == 16 ? 129 : topk == 1 ? 1 : 200, chunks = topk == 27 ? 63 : 700;
          check(ScoreShape{dtype, head_dim, group, group == 16 ? 1 : 2, scorer, topk, rows, chunks});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(MmaScore, lists_cut_and_sum_match_fp64) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes([](const ScoreShape& shape) {
    SCOPED_TRACE(words(shape));
    ScoreCase c(shape, 1);
    if (shape.topk == 1) c.rows[0].eligible_end = 700;
    expect_exact(c, score(c), kScoreBound);
  });
}

TEST(MmaScore, rows_of_a_tile_may_have_nothing_in_common) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes([](const ScoreShape& shape) {
    SCOPED_TRACE(words(shape));
    ScoreCase c(shape, 2);
    c.scatter_rows();
    for (std::size_t chunk = 0; chunk < c.present.size(); chunk += 3) c.present[chunk] = false;
    expect_exact(c, score(c), kScoreBound);
  });
}

TEST(MmaScore, every_length_of_a_packed_sequence) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  std::mt19937_64 random(3);
  for (const std::int64_t tokens : {1, 63, 64, 65, 129, 700, 9000}) {
    for (const std::int64_t sinks : {0, 70}) {
      AttentionProblem problem{.tokens = tokens, .landmark_slots = sinks == 0, .cu_seqlens = {}};
      if (random() % 2 == 0) problem.cu_seqlens = {0, tokens / 3, tokens / 3, tokens};
      const AttentionPolicy policy{.window = pick<std::int64_t>(random, {0, 100}), .topk = 8, .sinks = sinks};
      const partition::SequenceGrid grid(problem, policy);
      std::vector<TokenId> ids;
      for (std::int64_t token = 0; token < tokens; ++token) ids.emplace_back(token);
      ScoreCase c({.group = 2, .kv_heads = 1, .topk = 8, .rows = tokens, .chunks = grid.chunk_count()}, random());
      c.rows = row_geometry(grid, ids);
      SCOPED_TRACE(words(c.shape));
      for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
        c.present[static_cast<std::size_t>(chunk.value())] = grid.has_landmark(chunk);
      }
      expect_exact(c, score(c), kScoreBound);
    }
  }
}

bool same_lists(const Lists& a, const Lists& b) {
  for (std::size_t pair = 0; pair < a.cut.size(); ++pair) {
    const std::vector<Candidate> one = a.list(pair), other = b.list(pair);
    if (one.size() != other.size() || std::memcmp(&a.cut[pair], &b.cut[pair], sizeof(float)) != 0 ||
        std::memcmp(&a.sum[pair], &b.sum[pair], sizeof(float2)) != 0 ||
        !std::equal(one.begin(), one.end(), other.begin(), [](const Candidate& x, const Candidate& y) {
          return x.chunk == y.chunk && std::memcmp(&x.score, &y.score, sizeof(float)) == 0;
        })) {
      ADD_FAILURE() << "pair " << pair << " differs";
      return false;
    }
  }
  return true;
}

TEST(MmaScore, bits_depend_on_neither_range_nor_neighbours_nor_run) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes([](const ScoreShape& shape) {
    SCOPED_TRACE(words(shape));
    ScoreCase c(shape, 4);
    c.scatter_rows();
    const Lists whole = score(c);
    EXPECT_TRUE(same_lists(whole, score(c)));
    const std::int64_t a = shape.rows / 3, b = shape.rows / 2 + 1;
    EXPECT_TRUE(same_lists(whole, score(c, {0, std::min(a, b), std::max(b, shape.rows - 1), shape.rows})));
  });
}

// Chunks that share one of three keys have equal scores to the bit: the contract's order decides, by chunk.
TEST(MmaScore, ties_go_to_the_lower_chunk) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for_shapes([](const ScoreShape& shape) {
    SCOPED_TRACE(words(shape));
    ScoreCase c(shape, 5);
    const auto kind_of = [](std::int64_t chunk) { return chunk * chunk % 7 % 3; };
    const std::int64_t floats = c.layer.landmark_shape().record_floats();
    for (std::int64_t chunk = 3; chunk < shape.chunks; ++chunk) {
      std::copy_n(c.records.data() + kind_of(chunk) * floats, floats, c.records.data() + chunk * floats);
    }
    for (std::int64_t chunk = 0; chunk < 3; ++chunk) c.present[static_cast<std::size_t>(chunk)] = false;
    const Lists lists = score(c);
    const std::vector<float> queries = c.stored_queries();
    for (std::int64_t pair = 0; pair < shape.rows * c.layer.heads; pair += 7) {
      const auto at = static_cast<std::size_t>(pair);
      const std::vector<double> scores = exact_scores(c, queries, pair / c.layer.heads, pair % c.layer.heads);
      std::vector<Candidate> want;
      for (std::size_t chunk = 0; chunk < scores.size(); ++chunk) {
        if (std::isnan(scores[chunk])) continue;
        want.push_back({static_cast<float>(scores[chunk]), static_cast<std::int32_t>(chunk)});
      }
      std::sort(want.begin(), want.end(), better);
      const auto too_close = [&](const Candidate& a, const Candidate& b) {
        return a.score != b.score && a.score - b.score < 2.0f * static_cast<float>(kScoreBound);
      };
      if (std::adjacent_find(want.begin(), want.end(), too_close) != want.end()) continue;
      const std::vector<Candidate> got = lists.list(at);
      ASSERT_EQ(got.size(), std::min(want.size(), static_cast<std::size_t>(shape.topk + 4)));
      for (std::size_t n = 0; n < got.size(); ++n) {
        ASSERT_EQ(got[n].chunk, want[n].chunk) << "pair " << pair << " place " << n;
      }
    }
  });
}

// Keys that are their own high term leave only the rounding of the sums, and products that are all positive make their
// partial sums as large as they can be. Settling allows 16 units of 2^-24 of |query| |key|, for this and the exact
// score.
TEST(MmaScore, sums_are_rounded_by_less_than_settling_allows) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t head_dim : {64, 128}) {
    ScoreCase c({.head_dim = head_dim, .rows = 128, .chunks = 128}, 8);
    for (float& element : c.queries) element = std::fabs(element);
    c.queries = c.stored_queries();
    const std::size_t floats = static_cast<std::size_t>(c.layer.heads * head_dim);
    for (std::int64_t chunk = 0; chunk < c.shape.chunks; ++chunk) {
      std::copy_n(c.queries.begin() + chunk * c.layer.heads * head_dim, floats, c.key(chunk, 0));
      for (std::int64_t head = 0; head < c.layer.heads; ++head) c.bias(chunk, head) = 0.0f;
    }
    for (RowGeometry& row : c.rows) row.eligible_end = 128;
    const Lists lists = score(c);
    double most = 0.0;
    for (std::int64_t pair = 0; pair < 128 * c.layer.heads; ++pair) {
      const std::vector<double> scores = exact_scores(c, c.queries, pair / c.layer.heads, pair % c.layer.heads);
      for (const Candidate& candidate : lists.list(static_cast<std::size_t>(pair))) {
        const double exact = scores[static_cast<std::size_t>(candidate.chunk)];
        most = std::max(most, std::fabs(double{candidate.score} - exact) / exact);
      }
    }
    EXPECT_LT(most * 0x1p24, 14.0);
  }
}

// Zero queries: all scores are the bias. Rising towards older chunks, every chunk passes every gate on its way.
TEST(MmaScore, scores_that_rise_all_the_way) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const std::int64_t topk : {1, 16, 64}) {
    for (const bool equal : {false, true}) {
      ScoreCase c({.topk = topk, .rows = 70, .chunks = 1000}, 6);
      std::fill(c.queries.begin(), c.queries.end(), 0.0f);
      for (std::int64_t chunk = 0; chunk < c.shape.chunks; ++chunk) {
        for (std::int64_t head = 0; head < c.layer.heads; ++head) {
          c.bias(chunk, head) = equal ? -0.0f : 10.0f - static_cast<float>(chunk) / 64.0f;
        }
      }
      const Lists lists = score(c);
      expect_exact(c, lists, 1e-5);
      for (std::size_t pair = 0; pair < lists.cut.size(); ++pair) {
        const std::vector<Candidate> list = lists.list(pair);
        for (std::size_t n = 0; n < list.size(); ++n) ASSERT_EQ(list[n].chunk, static_cast<std::int32_t>(n));
      }
    }
  }
}

// A query that is not a number chooses nothing; a landmark that is none, or infinite, leaves the other chunks alone.
TEST(MmaScore, what_is_not_a_number_is_no_candidate) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  ScoreCase c({.rows = 100, .chunks = 300}, 7);
  for (RowGeometry& row : c.rows) row.eligible_end = 300;
  std::fill_n(c.queries.begin() + 50 * c.layer.heads * 64, c.layer.heads * 64, kNaN);
  for (std::int64_t head = 0; head < c.layer.heads; ++head) {
    c.bias(77, head) = kNaN;
    c.bias(78, head) = kMinusInfinity;
  }
  const Lists lists = score(c);
  c.present[77] = c.present[78] = false;
  for (std::size_t head = 0; head < static_cast<std::size_t>(c.layer.heads); ++head) {
    const std::size_t pair = 50 * static_cast<std::size_t>(c.layer.heads) + head;
    EXPECT_TRUE(lists.list(pair).empty());
    EXPECT_EQ(lists.cut[pair], kMinusInfinity);
    EXPECT_EQ(lists.sum[pair].y, 0.0f);
  }
  c.rows[50].eligible_end = 0;  // nothing to compare with
  expect_exact(c, lists, kScoreBound);

  for (std::int64_t head = 0; head < c.layer.heads; ++head) c.bias(79, head) = -kMinusInfinity;
  const Lists infinite = score(c);
  EXPECT_EQ(infinite.list(0)[0].chunk, 79);
  EXPECT_EQ(infinite.sum[0].x + std::log(infinite.sum[0].y), LogSum::kLargestScore);
}

}  // namespace
}  // namespace ringmark::kernels::cuda
