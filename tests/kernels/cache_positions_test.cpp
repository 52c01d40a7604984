// Positions in the cache of Landmark Attention: the rule by hand, and what the kernels make of it.
#include "kernels/positions/cache_positions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "kernels/reference/stingy.h"

namespace ringmark::kernels {
namespace {

using reference::ChunkCache;
using Positions = std::vector<std::int64_t>;

// Every ascending choice of `count` of n chunks.
template <class Visit>
void for_all_choices(std::int64_t n, std::int64_t count, Visit&& visit, Positions chosen = {}) {
  if (std::ssize(chosen) == count) return visit(chosen);
  for (std::int64_t c = chosen.empty() ? 0 : chosen.back() + 1; c < n; ++c) {
    chosen.push_back(c);
    for_all_choices(n, count, visit, chosen);
    chosen.pop_back();
  }
}

// By hand: five chunks of four slots, two of them in the cache, which begins at (5 - 3) 4 = 8.
TEST(ChunkCache, gives_far_landmarks_one_position_and_near_ones_their_own) {
  const ChunkCache cache{5, 2, 4};
  Positions landmarks;
  for (std::int64_t c = 0; c < 5; ++c) landmarks.push_back(cache.landmark_position(c));
  EXPECT_EQ(landmarks, (Positions{11, 11, 11, 15, 19}));
}

TEST(ChunkCache, packs_chosen_chunks_in_order) {
  const ChunkCache cache{5, 2, 4};
  EXPECT_EQ(cache.starts_of(Positions{0, 2}), (Positions{8, 12}));   // both far
  EXPECT_EQ(cache.starts_of(Positions{1, 4}), (Positions{8, 16}));   // the last one stays
  EXPECT_EQ(cache.starts_of(Positions{2, 3}), (Positions{8, 16}));   // 3 is moved too, from 12
  EXPECT_EQ(cache.starts_of(Positions{3, 4}), (Positions{12, 16}));  // both stay
}

TEST(ChunkCache, leaves_chunks_where_they_are_when_all_of_them_fit) {
  const ChunkCache cache{3, 4, 5};
  EXPECT_EQ(cache.starts_of(Positions{0, 1, 2}), (Positions{0, 5, 10}));
  EXPECT_EQ(cache.landmark_position(0), 4);
  EXPECT_EQ(cache.landmark_position(2), 14);
}

// Of every choice there is: positions rise strictly, chunks do not overlap, stay behind the current chunk and within
// K + 1 chunks of it, and never move away from the query.
TEST(ChunkCache, never_overlaps_and_never_reaches_further_than_its_chunks) {
  constexpr std::int64_t kSlots = 3;
  for (std::int64_t topk = 1; topk <= 4; ++topk) {
    for (std::int64_t n = 0; n <= 8; ++n) {
      const ChunkCache cache{n, topk, kSlots};
      for_all_choices(n, std::min(n, topk), [&](const Positions& chosen) {
        std::int64_t end = std::max<std::int64_t>(0, (n - topk - 1) * kSlots);
        const Positions starts = cache.starts_of(chosen);
        for (std::size_t r = 0; r < chosen.size(); ++r) {
          EXPECT_GE(starts[r], end);
          EXPECT_GE(starts[r], chosen[r] * kSlots);
          end = starts[r] + kSlots;
        }
        EXPECT_LE(end, n * kSlots);
      });
      for (std::int64_t c = 0; c < n; ++c) {
        EXPECT_LT(cache.landmark_position(c), n * kSlots);
        EXPECT_GE(cache.landmark_position(c), std::max(c * kSlots + kSlots - 1, (n - topk) * kSlots - 1));
      }
    }
  }
}

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, std::int64_t head_dim) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.head_dim = head_dim;
  problem.chunk_size = chunk_size;
  problem.dtype = DType::kFloat32;
  problem.scale = 1.0f;
  problem.landmark_slots = true;
  return problem;
}

AttentionPolicy stingy(std::int64_t topk, Choice choice = Choice::kHead) {
  AttentionPolicy policy;
  policy.window = 0;
  policy.topk = topk;
  policy.scorer = Scorer::kLandmark;
  policy.choice = choice;
  policy.landmark_positions = LandmarkPositions::kStingy;
  return policy;
}

PositionEncoding rope(PositionKind kind = PositionKind::kRope) {
  PositionEncoding encoding;
  encoding.kind = kind;
  return encoding;
}

// By hand: one pair that turns by 1 a position, chunks of two keys and a landmark, K = 1, the query at 9. The cache
// begins at (3 - 2) 3 = 3: landmarks of chunks 0 and 1 count at 5, that of chunk 2 at its own 8. With keys (-1, 0),
// (1, 0), (1, 0) there the scores are -cos 4, cos 4 and cos 1: chunk 0 is chosen, which at its true 2 would have had
// -cos 7 and lost to chunk 2. Its two keys (1, 0) then stand at 3 and 4.
TEST(Stingy, attends_as_by_hand) {
  reference::Layer layer{problem_of(10, 3, 2), stingy(1), std::vector<double>(20, 0.0), {}, {}, {}};
  for (int token = 0; token < 10; ++token) layer.k.insert(layer.k.end(), {token == 2 ? -1.0 : 1.0, 0.0});
  layer.q[18] = 1.0;
  layer.v.assign(20, 0.0);
  layer.v[0] = 1.0;  // of token 0
  layer.v[3] = 1.0;  // of token 1
  const std::vector<TokenId> last = {TokenId(9)};
  const reference::Result result = attend_stingy(layer, rope(), last, 1);
  EXPECT_EQ(result.selection.chunks, (std::vector<std::int32_t>{0}));
  EXPECT_NEAR(result.margin[0], -std::cos(4.0) - std::cos(1.0), 1e-12);
  EXPECT_NEAR(result.lse_window[0], 1.0, 1e-12);
  const double group_0 = std::exp(-std::cos(4.0)) + std::exp(1.0);
  EXPECT_NEAR(result.lse[0], std::log(group_0), 1e-12);
  const double inside = std::exp(std::cos(6.0)) + std::exp(std::cos(5.0));
  EXPECT_NEAR(result.out[0], std::exp(-std::cos(4.0)) / group_0 * std::exp(std::cos(6.0)) / inside, 1e-12);
  EXPECT_NEAR(result.out[1], std::exp(-std::cos(4.0)) / group_0 * std::exp(std::cos(5.0)) / inside, 1e-12);
}

std::vector<double> random_rows(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<double> rows(static_cast<std::size_t>(count));
  for (double& value : rows) value = normal(random);
  return rows;
}

// A cache with room for every chunk is plain landmark attention of rows rotated where they are.
TEST(Stingy, equals_landmark_attention_when_every_chunk_fits) {
  std::mt19937_64 random(1);
  AttentionProblem problem = problem_of(43, 5, 8);
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.cu_seqlens = {0, 13, 43};
  Positions positions;
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < 43; ++token) {
    positions.push_back(token < 13 ? token : token - 13);
    tokens.emplace_back(token);
  }
  for (const Choice choice : {Choice::kGroup, Choice::kHead, Choice::kAll}) {
    reference::Layer raw{problem, stingy(6, choice), random_rows(random, 43 * 4 * 8), {}, {}, {}};
    raw.k = random_rows(random, 43 * 2 * 8);
    raw.v = random_rows(random, 43 * 2 * 8);
    reference::Layer turned = raw;
    turned.policy.landmark_positions = LandmarkPositions::kTrue;
    turned.q = reference::rotated(rope(), Side::kQuery, raw.q, 4, 8, positions);
    turned.k = reference::rotated(rope(), Side::kKey, raw.k, 2, 8, positions);
    const reference::Result got = attend_stingy(raw, rope(), tokens, 1);
    const reference::Result want = attend(turned, tokens, 1);
    EXPECT_EQ(got.selection.chunks, want.selection.chunks);
    for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 1e-12);
    for (std::size_t i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(got.lse[i], want.lse[i], 1e-12);
  }
}

// The kernels' turns of rotated rows against rows that were never rotated, put where the cache has them: every
// encoding, both layouts, a part of the head, a million tokens.
TEST(CachePositions, turns_rotated_rows_as_if_they_had_been_put_into_the_cache) {
  constexpr std::int64_t kHeadDim = 64, kSlots = 16;
  std::mt19937_64 random(2);
  using enum PositionKind;
  for (const PositionKind kind : {kRope, kPi, kNtk, kYarn, kHope, kHopePartial, kXpos}) {
    for (const PairLayout layout : {PairLayout::kHalf, PairLayout::kInterleaved}) {
      PositionEncoding encoding = rope(kind);
      encoding.layout = layout;
      encoding.factor = kind == kRope || kind == kXpos ? 1.0 : 4.0;
      encoding.original_length = 4096;
      encoding.rotary_dim = layout == PairLayout::kHalf ? 0 : 48;
      encoding.gain_place = GainPlace::kRotation;
      encoding.center = kind == kXpos ? 100 : 0;
      const std::int64_t tokens = kind == kXpos ? 1 << 11 : 1 << 20;
      const AttentionProblem problem = problem_of(tokens, kSlots, kHeadDim);
      const AttentionPolicy policy = stingy(7);
      const partition::SequenceGrid grid(problem, policy);
      const CachePositions positions(problem, policy, grid, encoding);
      const auto at = [&](Side side, const std::vector<double>& raw, std::int64_t position) {
        const std::vector<double> turned = reference::rotated(encoding, side, raw, 1, kHeadDim, Positions{position});
        return std::vector<float>(turned.begin(), turned.end());
      };
      const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
        double sum = 0.0;
        for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
        return sum;
      };
      for (int round = 0; round < 20; ++round) {
        const auto o = tokens - 1 - static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tokens / 2));
        const ChunkCache cache{o / kSlots, policy.topk, kSlots};
        const std::vector<double> q = random_rows(random, kHeadDim), k = random_rows(random, kHeadDim);
        const std::vector<float> query = at(Side::kQuery, q, o);
        // Chunks 0, n - 9 (far), n - 6 .. n - 2 (near): slots 0 .. 6 of the list.
        Positions chosen = {0, cache.chunks - 9};
        for (std::int64_t back = 6; back >= 2; --back) chosen.push_back(cache.chunks - back);
        const Positions starts = cache.starts_of(chosen);
        for (std::size_t r = 0; r < chosen.size(); ++r) {
          std::vector<float> met = query;
          positions.meet_chunk(TokenId(o), ChunkId(chosen[r]), static_cast<std::int64_t>(r), met);
          EXPECT_NEAR(dot(met, at(Side::kKey, k, chosen[r] * kSlots + 3)), dot(query, at(Side::kKey, k, starts[r] + 3)),
                      4e-5)
              << name_of(kind) << " chunk " << chosen[r] << " of " << cache.chunks;
          EXPECT_EQ(positions.is_far(TokenId(o), ChunkId(chosen[r])), r < 2);
        }
        std::vector<float> met = query;
        positions.meet_far_landmarks(TokenId(o), met);
        for (const std::int64_t c : {std::int64_t{0}, cache.chunks - 9}) {
          std::vector<float> key = at(Side::kKey, k, c * kSlots + kSlots - 1);
          positions.turn_back_landmark(ChunkId(c), key);
          EXPECT_NEAR(dot(met, key), dot(query, at(Side::kKey, k, cache.landmark_position(c))), 4e-5) << name_of(kind);
        }
      }
    }
  }
}

void expect_refusal(const AttentionPolicy& policy, const std::string& want) {
  try {
    policy.validate(problem_of(64, 8, 32));
    ADD_FAILURE() << "accepted, not: " << want;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), want);
  }
}

TEST(Stingy, refuses_what_it_does_not_honour) {
  AttentionPolicy policy = stingy(4);
  policy.window = 8;
  expect_refusal(policy, "window with stingy positions = 8 is outside [0, 0]");
  policy = stingy(4);
  policy.sinks = 1;
  expect_refusal(policy, "sinks with stingy positions = 1 is outside [0, 0]");
  policy = stingy(4);
  policy.scorer = Scorer::kMean;
  expect_refusal(policy, "landmark_positions = stingy needs scorer landmark and the hierarchical fusion");
}

}  // namespace
}  // namespace ringmark::kernels
