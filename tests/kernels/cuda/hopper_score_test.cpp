#include <cstring>

#include "tests/kernels/cuda/hopper_score_case.h"

namespace ringmark::kernels::cuda {
namespace {

class HopperScore : public ::testing::Test {
 protected:
  void SetUp() override { RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper); }
};

TEST_F(HopperScore, GroupsOfAllSizes) {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const int head_dim : {64, 128}) {
      for (const int group : {1, 2, 4, 8, 16}) {
        for (const Scorer scorer : {Scorer::kHils, Scorer::kMean}) {
          const int topk = group == 1 ? 16 : group == 2 ? 64 : group == 4 ? 7 : group == 8 ? 32 : 20;
          ScoringCase c(dtype, head_dim, group > 4 ? 1 : 2, group, scorer, topk, 700, 70, ++seed);
          SCOPED_TRACE(describe(c));
          c.scatter_ranges();
          expect_right(c, 200);
        }
      }
    }
  }
}

TEST_F(HopperScore, ChunkCountsAroundTiles) {
  std::uint64_t seed = 100;
  for (const int chunks : {1, 2, 63, 64, 65, 127, 128, 129, 1000}) {
    for (const int topk : {1, 16, 17, 32, 33, 64}) {
      ScoringCase c(topk % 2 == 0 ? DType::kBfloat16 : DType::kFloat16, 64, 1, 2, Scorer::kHils, topk, chunks, 300,
                    ++seed);
      SCOPED_TRACE(describe(c));
      if (chunks % 2 == 1) c.scatter_ranges();
      expect_right(c, 150);
    }
  }
}

TEST_F(HopperScore, ManyChunks) {
  std::uint64_t seed = 200;
  for (const int topk : {16, 32, 64}) {
    for (const int group : {1, 4}) {
      ScoringCase c(DType::kBfloat16, 128, 1, group, Scorer::kHils, topk, 16384, 300, ++seed);
      SCOPED_TRACE(describe(c));
      for (int row = 0; row < c.rows(); ++row) c.geometry[static_cast<std::size_t>(row)].eligible_end = 16080 + row;
      expect_right(c, 40);
    }
  }
}

// Candidates that wait farther apart than the marks of waiting places reach.
TEST_F(HopperScore, CandidatesFarApart) {
  const int chunks = 140'000, newest = chunks - 200;
  ScoringCase c(DType::kBfloat16, 64, 1, 2, Scorer::kHils, 4, chunks, 8, 250);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const float offset = chunk > newest ? 100.0f : chunk % 70'000 == 5 ? 150.0f : 0.0f;
    for (const int head : {0, 1}) c.bias(chunk, head) += offset;
  }
  expect_right(c);
}

// Rows as of a causal sequence with sinks, and of packed documents: rows of one tile with disjoint ranges.
TEST_F(HopperScore, SinksAndPackedDocuments) {
  for (const int topk : {4, 24, 64}) {
    ScoringCase c(DType::kBfloat16, 128, 2, 4, Scorer::kHils, topk, 1000, 700, 300 + static_cast<std::uint64_t>(topk));
    SCOPED_TRACE(describe(c));
    for (int row = 0; row < c.rows(); ++row) {
      RowGeometry& geometry = c.geometry[static_cast<std::size_t>(row)];
      const int document = row / 100;
      geometry.eligible_first = document * 130 - document % 2;
      geometry.eligible_end = geometry.eligible_first + std::max(0, row % 100 - 3) * 130 / 100;
    }
    expect_right(c, 600);
    for (RowGeometry& geometry : c.geometry) geometry.eligible_first = std::min(geometry.eligible_end, 5);
    expect_right(c, 200);
  }
}

TEST_F(HopperScore, NewestOfEqualChunksAreListed) {
  for (const int topk : {1, 16, 32, 64}) {
    ScoringCase c(DType::kBfloat16, 64, 1, 2, Scorer::kHils, topk, 1000, 200, 400);
    SCOPED_TRACE(describe(c));
    for (std::vector<float>& record : c.records) record = c.records[0];
    for (int row = 0; row < c.rows(); ++row) c.geometry[static_cast<std::size_t>(row)].eligible_end = 5 * row;
    DeviceScoring device(c);
    const ListsOnHost got = device.score();
    expect_right(c, device, got);
    for (int row = 0; row < c.rows(); ++row) {
      int unused = 0;
      const std::vector<Candidate> list = got.of(static_cast<std::size_t>(row) * 2, unused);
      for (std::size_t i = 0; i < list.size(); ++i) {
        ASSERT_EQ(list[i].chunk, 5 * row - 1 - static_cast<int>(i)) << "row " << row;
        ASSERT_EQ(list[i].score, list[0].score) << "row " << row;
      }
      const bool all = 5 * row <= topk + 4;
      ASSERT_EQ(got.cut[static_cast<std::size_t>(row) * 2], all ? kMinusInfinity : list[0].score) << "row " << row;
    }
  }
}

// Scores that come from the bias alone: a few values over and over, and ever better ones towards older chunks, so that
// everything passes the gates.
TEST_F(HopperScore, ManyEqualAndEverBetterScores) {
  for (const int topk : {3, 16, 32, 64}) {
    for (const int kind : {0, 1, 2, 3}) {
      ScoringCase c(DType::kFloat16, 64, 1, 2, Scorer::kHils, topk, 1500, 256, 500);
      SCOPED_TRACE(describe(c) + " kind " + std::to_string(kind));
      std::fill(c.queries.begin(), c.queries.end(), std::byte{0});
      for (int chunk = 0; chunk < 1500; ++chunk) {
        for (const int head : {0, 1}) {
          c.bias(chunk, head) = kind == 0   ? static_cast<float>(c.random() % 5)
                                : kind == 1 ? static_cast<float>(1500 - chunk) * 0.01f
                                : kind == 2 ? static_cast<float>((1500 - chunk) - (1500 - chunk) % 50)
                                            : static_cast<float>(chunk % 8 == 3 ? 9 + c.random() % 40 : c.random() % 9);
        }
      }
      c.scatter_ranges();
      DeviceScoring device(c);
      const ListsOnHost got = device.score();
      expect_right(c, device, got);
      for (int row = 0; row < c.rows(); ++row) {
        std::vector<Candidate> want;
        const RowGeometry& geometry = c.geometry[static_cast<std::size_t>(row)];
        for (int chunk = geometry.eligible_first; chunk < geometry.eligible_end; ++chunk) {
          want.push_back({c.bias(chunk, 1), chunk});
        }
        std::sort(want.begin(), want.end(), [](const Candidate& a, const Candidate& b) {
          return a.score > b.score || (a.score == b.score && a.chunk > b.chunk);
        });
        int unused = 0;
        const std::vector<Candidate> list = got.of(static_cast<std::size_t>(row) * 2 + 1, unused);
        for (std::size_t i = 0; i < list.size(); ++i) {
          ASSERT_EQ(list[i].chunk, want[i].chunk) << "row " << row << " place " << i << " score " << list[i].score;
        }
      }
    }
  }
}

TEST_F(HopperScore, AbsentLandmarksAndNumbersThatAreNone) {
  ScoringCase c(DType::kBfloat16, 128, 1, 4, Scorer::kHils, 16, 1000, 300, 600);
  for (int chunk = 0; chunk < 1000; ++chunk) {
    c.present[static_cast<std::size_t>(chunk)] = chunk % 400 > 250 && chunk % 3 != 0;
    if (chunk % 7 == 0) c.bias(chunk, 1) = kNaN;
    if (chunk % 11 == 0) c.bias(chunk, 2) = kMinusInfinity;
  }
  const auto at = [&](int row, int head) { return (std::int64_t{row} * 4 + head) * 128 * 2; };
  std::memset(c.queries.data() + at(17, 3), 0xFF, 256);  // NaN
  c.scatter_ranges();
  DeviceScoring device(c);
  const ListsOnHost got = device.score();
  const std::size_t pair = 17 * 4 + 3;
  int unused = 0;
  EXPECT_TRUE(got.of(pair, unused).empty());
  EXPECT_EQ(got.cut[pair], kMinusInfinity);
  EXPECT_EQ(got.sum[pair].y, 0.0f);
  expect_right(c, device, got, 1200);
}

// Sums far from 1: references must move, and nothing may overflow or vanish.
TEST_F(HopperScore, LargeAndSmallScores) {
  for (const float offset : {-3000.0f, -100.0f, 150.0f, 20000.0f}) {
    for (const bool varies : {false, true}) {
      ScoringCase c(DType::kBfloat16, 64, 1, 2, Scorer::kHils, 16, 600, 200, 700);
      SCOPED_TRACE(std::to_string(offset) + (varies ? " varies" : ""));
      for (int chunk = 0; chunk < 600; ++chunk) {
        for (const int head : {0, 1})
          c.bias(chunk, head) += varies ? offset * static_cast<float>(c.random() % 3) : offset;
      }
      expect_right(c);
    }
  }
  ScoringCase c(DType::kBfloat16, 64, 1, 2, Scorer::kHils, 4, 100, 20, 701);
  c.bias(40, 0) = std::numeric_limits<float>::infinity();
  DeviceScoring device(c);
  const ListsOnHost got = device.score();
  for (std::size_t pair = 0; pair < 40; pair += 2) {
    int unused = 0;
    EXPECT_EQ(got.of(pair, unused)[0].chunk, 40);
    EXPECT_EQ(got.sum[pair].x, LogSum::kLargestScore);
    EXPECT_EQ(got.sum[pair].y, 1.0f);
  }
}

// Bit for bit the same whatever the range, and so the tile that a row is in.
TEST_F(HopperScore, RangesDoNotMatter) {
  for (const int topk : {16, 32, 64}) {
    for (const int group : {1, 4}) {
      ScoringCase c(DType::kBfloat16, 128, 1, group, Scorer::kHils, topk, 3000, 900,
                    800 + static_cast<std::uint64_t>(topk));
      SCOPED_TRACE(describe(c));
      c.scatter_ranges();
      DeviceScoring device(c);
      const ListsOnHost whole = device.score();
      for (const RowRange rows :
           {RowRange{0, 900}, RowRange{1, 900}, RowRange{100, 101}, RowRange{77, 700}, RowRange{0, 0}}) {
        const ListsOnHost part = device.score(rows);
        const auto first = static_cast<std::size_t>(rows.begin * c.shape.heads);
        for (std::size_t pair = 0; pair < part.cut.size(); ++pair) {
          int unused = 0;
          const std::vector<Candidate> a = part.of(pair, unused), b = whole.of(first + pair, unused);
          ASSERT_EQ(a.size(), b.size()) << "pair " << pair << " from row " << rows.begin;
          ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(Candidate)), 0) << "pair " << pair;
          ASSERT_EQ(std::memcmp(&part.cut[pair], &whole.cut[first + pair], sizeof(float)), 0) << "pair " << pair;
          ASSERT_EQ(std::memcmp(&part.sum[pair], &whole.sum[first + pair], sizeof(float2)), 0)
              << "pair " << pair << " from row " << rows.begin << ": {" << part.sum[pair].x << ", " << part.sum[pair].y
              << "}, {" << whole.sum[first + pair].x << ", " << whole.sum[first + pair].y << "}";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
