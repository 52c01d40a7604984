#include "kernels/score_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"

namespace ringmark::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ForcedIsa {
 public:
  explicit ForcedIsa(cpu::Isa isa) : before_(cpu::active_isa()) { cpu::force_isa(isa); }
  ~ForcedIsa() { cpu::force_isa(before_); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  cpu::Isa before_;
};

struct ScoringCase {
  AttentionProblem problem;
  AttentionPolicy policy;
  std::vector<ChunkId> chunks;
  std::vector<float> records;
  std::vector<TokenId> tokens;
  std::vector<std::byte> queries;

  LandmarkShape shape() const { return LandmarkShape::of(problem, policy.scorer); }
  RowsView queries_view() const {
    return {.data = queries.data(),
            .dtype = problem.dtype,
            .rows = static_cast<std::int64_t>(tokens.size()),
            .heads = problem.heads,
            .head_dim = problem.head_dim};
  }
};

// Score of one chunk for a query that has the scale multiplied in: one chain of fused multiply-adds a vector.
float score_of(const ScoringCase& c, const float* record, std::int64_t landmark_head, const std::vector<float>& query) {
  const LandmarkShape shape = c.shape();
  const float bias = record[shape.bias_offset() + landmark_head];
  LogSum sum;
  bool has_nan = false;
  for (std::int64_t v = 0; v < shape.vectors; ++v) {
    const float* key = record + (landmark_head * shape.vectors + v) * shape.head_dim;
    if (shape.vectors > 1 && key[0] == kInfinity) continue;
    float dot = 0.0f;
    for (std::size_t i = 0; i < query.size(); ++i) dot = std::fma(query[i], key[i], dot);
    if (shape.vectors == 1) return dot + bias;
    has_nan |= std::isnan(dot);
    if (!std::isnan(dot)) sum.add(dot);
  }
  return has_nan ? kNan : sum.value() + bias;
}

// What meets the largest components of a chunk's keys, then what meets the least.
std::vector<float> split_by_sign(const std::vector<float>& query) {
  std::vector<float> split;
  for (const float component : query) split.push_back(component > 0.0f ? component : 0.0f);
  for (const float component : query) split.push_back(component < 0.0f ? component : 0.0f);
  return split;
}

CandidateLists score_plainly(const ScoringCase& c) {
  const partition::SequenceGrid grid(c.problem, c.policy);
  const LandmarkShape shape = c.shape();
  CandidateLists lists(static_cast<std::int64_t>(c.tokens.size()), c.problem.heads, c.policy.topk);
  for (std::int64_t row = 0; row < lists.rows; ++row) {
    const Range<ChunkId> eligible = grid.eligible(c.tokens[static_cast<std::size_t>(row)]);
    for (std::int64_t head = 0; head < lists.heads; ++head) {
      std::vector<float> query(static_cast<std::size_t>(c.problem.head_dim));
      c.queries_view().load(row, head, query.data());
      for (float& component : query) component *= c.problem.scale;
      if (c.policy.scorer == Scorer::kQuest) query = split_by_sign(query);
      std::vector<Candidate> candidates;
      for (std::size_t i = 0; i < c.chunks.size(); ++i) {
        if (!eligible.contains(c.chunks[i])) continue;
        const float* record = c.records.data() + i * static_cast<std::size_t>(shape.record_floats());
        const float score = score_of(c, record, shape.head_of(head, lists.heads), query);
        if (std::isnan(score)) continue;
        lists.sum(row, head).add(score);
        candidates.push_back({score, static_cast<std::int32_t>(c.chunks[i].value())});
      }
      std::sort(candidates.begin(), candidates.end(), better);
      const std::size_t used = std::min(candidates.size(), static_cast<std::size_t>(lists.topk));
      std::copy_n(candidates.begin(), used, lists.list(row, head).begin());
    }
  }
  return lists;
}

CandidateLists score_fast(const ScoringCase& c, cpu::Isa isa, int threads) {
  const ForcedIsa forced(isa);
  const partition::SequenceGrid grid(c.problem, c.policy);
  return score_chunks(c.problem, c.policy, grid, c.queries_view(), c.tokens,
                      PackedLandmarks(c.shape(), c.chunks, c.records), threads);
}

// Bit for bit; reports the first difference.
void expect_same(const CandidateLists& actual, const CandidateLists& expected, const std::string& what) {
  ASSERT_EQ(actual.candidates.size(), expected.candidates.size()) << what;
  ASSERT_EQ(actual.sums.size(), expected.sums.size()) << what;
  for (std::size_t i = 0; i < expected.candidates.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual.candidates[i].score),
              std::bit_cast<std::uint32_t>(expected.candidates[i].score))
        << what << ", candidate " << i << ": " << actual.candidates[i].score << " for " << expected.candidates[i].score;
    ASSERT_EQ(actual.candidates[i].chunk, expected.candidates[i].chunk) << what << ", candidate " << i;
  }
  for (std::size_t i = 0; i < expected.sums.size(); ++i) {
    ASSERT_EQ(actual.sums[i].place, expected.sums[i].place) << what << ", sum " << i;
    ASSERT_EQ(actual.sums[i].high, expected.sums[i].high) << what << ", sum " << i;
    ASSERT_EQ(actual.sums[i].low, expected.sums[i].low) << what << ", sum " << i;
  }
}

void expect_exact(const ScoringCase& c, const std::string& what) {
  const CandidateLists expected = score_plainly(c);
  for (const cpu::Isa isa : {cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (!cpu::supported(isa)) continue;
    for (const int threads : {1, 3}) {
      expect_same(score_fast(c, isa, threads), expected,
                  what + ", " + cpu::name_of(isa) + ", threads " + std::to_string(threads));
    }
  }
}

class CaseMaker {
 public:
  explicit CaseMaker(std::uint64_t seed) : random_(seed) {}

  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  float normal() { return normal_(random_); }
  bool chance(int one_in) { return random_() % static_cast<std::uint64_t>(one_in) == 0; }

  AttentionProblem problem() {
    AttentionProblem problem;
    problem.tokens = 1 + static_cast<std::int64_t>(random_() % 700);
    problem.kv_heads = pick<std::int64_t>({1, 2});
    problem.heads = problem.kv_heads * pick<std::int64_t>({1, 2});
    problem.head_dim = pick<std::int64_t>({1, 8, 32, 64, 65, 80, 96, 128, 192, 256});
    problem.chunk_size = pick<std::int64_t>({1, 16, 64});
    problem.dtype = pick({DType::kFloat32, DType::kBfloat16, DType::kFloat16});
    problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
    problem.landmark_slots = problem.chunk_size > 1 && chance(2);
    if (chance(2)) {
      const std::int64_t cut = problem.tokens / 3;
      problem.cu_seqlens = {0, cut, cut, problem.tokens};
    }
    return problem;
  }

  AttentionPolicy policy(const AttentionProblem& problem) {
    AttentionPolicy policy;
    policy.window = pick<std::int64_t>({0, 1, 50, problem.tokens});
    policy.topk = pick<std::int64_t>({0, 1, 8, 100, kMaxTopk});
    policy.sinks = pick<std::int64_t>({0, 0, 5, 100});
    policy.scorer = pick({Scorer::kHils, Scorer::kMean, Scorer::kOracle, Scorer::kQuest});
    return policy;
  }

  // Consecutive tokens, or any tokens in any order.
  std::vector<TokenId> tokens(std::int64_t sequence) {
    const std::int64_t count = std::min<std::int64_t>(sequence, 90);
    const std::int64_t first = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sequence - count + 1));
    const bool scattered = chance(3);
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto any = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(sequence));
      tokens.push_back(TokenId(scattered ? any : first + i));
    }
    return tokens;
  }

  // Chunks with a landmark; some left out when there are gaps.
  std::vector<ChunkId> chunks(const partition::SequenceGrid& grid, bool gaps) {
    std::vector<ChunkId> chunks;
    for (ChunkId chunk(0); chunk.value() < grid.chunk_count(); ++chunk) {
      if (grid.has_landmark(chunk) && !(gaps && chunk.value() / 7 % 2 == 1)) chunks.push_back(chunk);
    }
    return chunks;
  }

  void fill_records(ScoringCase& c, float bias) {
    const LandmarkShape shape = c.shape();
    const partition::SequenceGrid grid(c.problem, c.policy);
    for (const ChunkId chunk : c.chunks) {
      const bool duplicate = !c.records.empty() && chance(4);
      const auto size = static_cast<std::size_t>(shape.record_floats());
      std::vector<float> record(size);
      for (float& value : record) value = normal();
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        record[static_cast<std::size_t>(shape.bias_offset() + head)] = shape.vectors > 1 ? 0.0f : normal() + bias;
        for (std::int64_t v = grid.keys_of(chunk).size(); v < shape.vectors; ++v) {
          record[static_cast<std::size_t>((head * shape.vectors + v) * shape.head_dim)] = kInfinity;
        }
      }
      if (duplicate) std::copy_n(c.records.end() - static_cast<std::ptrdiff_t>(size), size, record.begin());
      c.records.insert(c.records.end(), record.begin(), record.end());
    }
  }

  void fill_queries(ScoringCase& c) {
    std::vector<float> values(c.tokens.size() * static_cast<std::size_t>(c.problem.heads * c.problem.head_dim));
    for (float& value : values) value = normal();
    c.queries.resize(values.size() * static_cast<std::size_t>(size_of(c.problem.dtype)));
    narrow(values.data(), c.problem.dtype, static_cast<std::int64_t>(values.size()), c.queries.data());
  }

  ScoringCase any(float bias) {
    ScoringCase c;
    c.problem = problem();
    c.policy = policy(c.problem);
    c.chunks = chunks(partition::SequenceGrid(c.problem, c.policy), chance(2));
    fill_records(c, bias);
    c.tokens = tokens(c.problem.tokens);
    fill_queries(c);
    return c;
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

std::string describe(std::uint64_t seed, const ScoringCase& c) {
  return "seed " + std::to_string(seed) + ", tokens " + std::to_string(c.problem.tokens) + ", chunk_size " +
         std::to_string(c.problem.chunk_size) + ", head_dim " + std::to_string(c.problem.head_dim) + ", topk " +
         std::to_string(c.policy.topk) + ", window " + std::to_string(c.policy.window) + ", scorer " +
         std::string(name_of(c.policy.scorer));
}

// One row that sees every score of a list: head_dim 1, query 1 and landmark keys equal to the scores.
ScoringCase crafted(const std::vector<float>& scores, std::int64_t topk) {
  ScoringCase c;
  c.problem.tokens = static_cast<std::int64_t>(scores.size()) + 1;
  c.problem.head_dim = 1;
  c.problem.chunk_size = 1;
  c.problem.dtype = DType::kFloat32;
  c.problem.scale = 1.0f;
  c.policy.window = 0;
  c.policy.topk = topk;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    c.chunks.push_back(ChunkId(static_cast<std::int64_t>(i)));
    c.records.insert(c.records.end(), {scores[i], 0.0f});
  }
  c.tokens = {TokenId(c.problem.tokens - 1)};
  const float one = 1.0f;
  c.queries.resize(sizeof one);
  narrow(&one, DType::kFloat32, 1, c.queries.data());
  return c;
}

void expect_crafted(const std::vector<float>& scores, const std::string& what) {
  for (const std::int64_t topk : {1, 8, 16, 17, 32, 33, 64, 200, 300, 2000, 4096}) {
    expect_exact(crafted(scores, topk), what + ", topk " + std::to_string(topk));
  }
}

std::vector<float> random_scores(std::size_t count, float spread) {
  std::mt19937_64 random(17);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> scores(count);
  for (float& score : scores) score = normal(random);
  return scores;
}

TEST(ScoreChunks, random_problems_match_the_plain_loop_bit_for_bit) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const ScoringCase c = CaseMaker(seed).any(0.0f);
    expect_exact(c, describe(seed, c));
    if (HasFatalFailure()) return;
  }
}

TEST(ScoreChunks, scores_far_below_zero_match_bit_for_bit) {
  for (std::uint64_t seed = 1000; seed < 1030; ++seed) {
    const ScoringCase c = CaseMaker(seed).any(-2e4f);
    expect_exact(c, describe(seed, c));
    if (HasFatalFailure()) return;
  }
}

TEST(ScoreChunks, many_chunks_in_any_order_of_scores) {
  std::vector<float> scores = random_scores(3000, 1.0f);
  expect_crafted(scores, "random");
  std::sort(scores.begin(), scores.end());
  expect_crafted(scores, "ascending");
  std::reverse(scores.begin(), scores.end());
  expect_crafted(scores, "descending");
}

TEST(ScoreChunks, place_of_the_sum_rises_one_exponent_at_a_time) {
  std::vector<float> scores;
  for (int i = -1500; i < 1500; ++i) scores.push_back(0.6931472f * static_cast<float>(i));
  expect_crafted(scores, "all exponents");
  expect_crafted(random_scores(1500, 40.0f), "spread 40");
  expect_crafted(random_scores(1500, 1e4f), "spread 1e4");
}

// Many terms of the largest exponents of a place: the sums of their digits need more than 32 bits.
TEST(ScoreChunks, sums_of_the_largest_digits_are_exact) {
  for (int exponent = 26; exponent <= 33; ++exponent) {
    const std::vector<float> scores(1000, 0.6931472f * static_cast<float>(exponent) + 0.3f);
    expect_exact(crafted(scores, 8), "exponent " + std::to_string(exponent));
  }
}

TEST(ScoreChunks, equal_scores_go_to_the_lower_chunk) {
  expect_crafted(std::vector<float>(2500, 0.25f), "all equal");
  expect_crafted(std::vector<float>(700, 0.0f), "all zero");
  std::vector<float> few = random_scores(2500, 1.0f);
  for (float& score : few) score = std::round(score);
  expect_crafted(few, "few values");
}

TEST(ScoreChunks, nan_never_enters_and_infinitely_low_scores_come_last) {
  std::vector<float> scores = random_scores(1000, 1.0f);
  for (std::size_t i = 0; i < scores.size(); i += 3) scores[i] = kNan;
  expect_crafted(scores, "some NaN");
  for (std::size_t i = 1; i < scores.size(); i += 2) scores[i] = -kInfinity;
  expect_crafted(scores, "some minus infinity");
  expect_crafted(std::vector<float>(300, kNan), "all NaN");
  expect_crafted(std::vector<float>(300, -kInfinity), "all minus infinity");
}

TEST(ScoreChunks, huge_scores_match_bit_for_bit) {
  std::vector<float> scores = random_scores(900, 1.0f);
  for (std::size_t i = 0; i < scores.size(); i += 50) scores[i] *= 1e7f;
  expect_crafted(scores, "huge outliers");
  expect_crafted(random_scores(900, 1e8f), "spread 1e8");
}

TEST(ScoreChunks, no_landmarks_or_no_rows_give_empty_lists) {
  ScoringCase c = crafted({1.0f, 2.0f}, 8);
  c.chunks.clear();
  c.records.clear();
  expect_exact(c, "no landmarks");
  c = crafted({1.0f, 2.0f}, 8);
  c.tokens.clear();
  c.queries.clear();
  expect_exact(c, "no rows");
}

TEST(ScoreChunks, parts_of_a_landmark_list_merge_to_the_whole_sum) {
  const std::vector<float> scores = random_scores(777, 30.0f);
  const ScoringCase whole = crafted(scores, 16);
  LogSum merged;
  for (std::size_t part = 0; part < 3; ++part) {
    ScoringCase c = crafted(scores, 16);
    c.chunks.clear();
    c.records.clear();
    for (std::size_t i = part; i < scores.size(); i += 3) {
      c.chunks.push_back(ChunkId(static_cast<std::int64_t>(i)));
      c.records.insert(c.records.end(), {scores[i], 0.0f});
    }
    merged.add(score_fast(c, cpu::active_isa(), 1).sum(0, 0));
  }
  const LogSum expected = score_fast(whole, cpu::active_isa(), 1).sum(0, 0);
  EXPECT_EQ(merged.place, expected.place);
  EXPECT_EQ(merged.high, expected.high);
  EXPECT_EQ(merged.low, expected.low);
}

}  // namespace
}  // namespace ringmark::kernels
