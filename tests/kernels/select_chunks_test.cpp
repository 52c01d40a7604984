#include "kernels/select_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace ringmark::kernels {
namespace {

constexpr float kEmptyWindow = -std::numeric_limits<float>::infinity();

// The lists one part would send: per head the K best of its scores in contract order, and their sum.
CandidateLists lists_of(const std::vector<std::vector<float>>& head_scores, const std::vector<std::int32_t>& chunks,
                        std::int64_t topk) {
  CandidateLists lists(1, static_cast<std::int64_t>(head_scores.size()), topk);
  for (std::size_t h = 0; h < head_scores.size(); ++h) {
    std::vector<Candidate> all;
    for (const std::int32_t chunk : chunks) {
      all.push_back({head_scores[h][static_cast<std::size_t>(chunk)], chunk});
      lists.sum(0, static_cast<std::int64_t>(h)).add(all.back().score);
    }
    std::sort(all.begin(), all.end(), better);
    all.resize(std::min(all.size(), static_cast<std::size_t>(topk)));
    std::copy(all.begin(), all.end(), lists.list(0, static_cast<std::int64_t>(h)).begin());
  }
  return lists;
}

std::vector<std::int32_t> choose(const std::vector<CandidateLists>& parts, const std::vector<float>& lse_window,
                                 std::int64_t choosers, std::int64_t topk) {
  Selection selection(1, choosers, topk);
  select_chunks(parts, lse_window, 0, selection, 1);
  return selection.chunks;
}

std::vector<std::int32_t> first(std::int32_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(SelectChunks, by_hand) {
  EXPECT_EQ(choose({lists_of({{1, 9, 3, 7}}, first(4), 2)}, {0}, 1, 2), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(choose({lists_of({{5, 5, 5, 5}}, first(4), 2)}, {0}, 1, 2),
            (std::vector<std::int32_t>{0, 1}));  // ties: lower id
  EXPECT_EQ(choose({lists_of({{4, 2}}, first(2), 4)}, {0}, 1, 4),
            (std::vector<std::int32_t>{0, 1, -1, -1}));  // fewer than K
}

// By hand: head 0 scores {10, 9}, head 1 {0, -9}. The raw maximum over heads would take chunk 0 for its 10; normalised,
// head 1 gives nearly all its mass to chunk 0 as well, but with head 1 = {-9, 0} chunk 1 holds rank ~0 there and beats
// chunk 0's ln(e^10 / (e^10 + e^9)) = -0.31.
TEST(SelectChunks, ranks_by_normalised_weight_not_by_raw_score) {
  EXPECT_EQ(choose({lists_of({{10, 9}, {-9, 0}}, first(2), 1)}, {kEmptyWindow, kEmptyWindow}, 1, 1),
            (std::vector<std::int32_t>{1}));
  EXPECT_EQ(choose({lists_of({{10, 9}, {0, -9}}, first(2), 1)}, {kEmptyWindow, kEmptyWindow}, 1, 1),
            (std::vector<std::int32_t>{0}));
}

// By hand: the window enters the normaliser: a head whose mass is all in the window has no say.
TEST(SelectChunks, the_window_takes_its_share) {
  EXPECT_EQ(choose({lists_of({{1, 0}, {0, 3}}, first(2), 1)}, {0, 50}, 1, 1), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(choose({lists_of({{1, 0}, {0, 3}}, first(2), 1)}, {0, 0}, 1, 1), (std::vector<std::int32_t>{1}));
}

// By hand: alone every head takes its best chunk; in pairs, and all together, the head that gives one chunk the largest
// share of its mass has its way.
TEST(SelectChunks, heads_agree_in_runs_of_any_length) {
  const CandidateLists lists = lists_of({{6, 0, 0}, {0, 7, 0}, {0, 0, 8}, {0, 0, 9}}, first(3), 1);
  const std::vector<float> no_mass(4, kEmptyWindow);
  EXPECT_EQ(choose({lists}, no_mass, 4, 1), (std::vector<std::int32_t>{0, 1, 2, 2}));
  EXPECT_EQ(choose({lists}, no_mass, 2, 1), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(choose({lists}, no_mass, 1, 1), (std::vector<std::int32_t>{2}));
}

// By hand: the window would leave head 0 no say; landmarks are compared with landmarks alone, where it has the most.
TEST(SelectChunks, without_the_window_the_normaliser_is_that_of_the_chunks) {
  const CandidateLists lists = lists_of({{9, 0}, {0, 3}}, first(2), 1);
  EXPECT_EQ(choose({lists}, {50, 0}, 1, 1), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(choose({lists}, {}, 1, 1), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(choose({lists}, {kEmptyWindow, kEmptyWindow}, 1, 1), (std::vector<std::int32_t>{0}));
}

// The result is that of one list, however the landmarks are spread over parts; and that of the plain definition.
TEST(SelectChunks, equals_the_definition_for_any_split) {
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (int round = 0; round < 400; ++round) {
    const auto chunks = static_cast<std::int32_t>(1 + random() % 60);
    const auto group = static_cast<std::int64_t>(1 + random() % 8);
    const auto topk = static_cast<std::int64_t>(1 + random() % 12);
    std::vector<std::vector<float>> scores(static_cast<std::size_t>(group));
    std::vector<float> lse_window;
    for (auto& head : scores) {
      lse_window.push_back(random() % 5 == 0 ? kEmptyWindow : normal(random));
      for (std::int32_t c = 0; c < chunks; ++c) head.push_back(random() % 4 == 0 ? 1.5f : normal(random));
    }
    std::vector<std::pair<double, std::int32_t>> rank;  // negated, so that pairs sort in contract order
    for (std::int32_t c = 0; c < chunks; ++c) {
      double best = -std::numeric_limits<double>::infinity();
      for (std::size_t h = 0; h < scores.size(); ++h) {
        LogSum sum;
        for (const float s : scores[h]) sum.add(s);
        const double all = sum.value(), window = lse_window[h];
        const double most = std::max(all, window);
        best = std::max(best, scores[h][static_cast<std::size_t>(c)] -
                                  (group == 1 ? 0.0 : most + std::log1p(std::exp(std::min(all, window) - most))));
      }
      rank.emplace_back(-best, c);
    }
    std::sort(rank.begin(), rank.end());
    std::vector<std::int32_t> want;
    for (std::size_t n = 0; n < std::min(rank.size(), static_cast<std::size_t>(topk)); ++n)
      want.push_back(rank[n].second);
    std::sort(want.begin(), want.end());
    want.resize(static_cast<std::size_t>(topk), -1);

    const std::size_t part_count = 1 + random() % 7;
    std::vector<std::vector<std::int32_t>> split(part_count);
    for (std::int32_t c = 0; c < chunks; ++c) split[random() % part_count].push_back(c);
    std::vector<CandidateLists> parts;
    for (const auto& ids : split) parts.push_back(lists_of(scores, ids, topk));
    EXPECT_EQ(choose(parts, lse_window, 1, topk), want) << "round " << round;
  }
}

TEST(SelectionDigest, adds_up_over_shards_and_sees_every_change) {
  Selection whole(3, 1, 2);
  whole.chunks = {0, 1, 0, 2, 1, -1};
  const std::vector<TokenId> tokens = {TokenId(5), TokenId(6), TokenId(7)};
  Selection head(1, 1, 2), tail(2, 1, 2);
  head.chunks = {0, 1};
  tail.chunks = {0, 2, 1, -1};
  EXPECT_EQ(selection_digest(whole, tokens),
            selection_digest(head, {tokens.data(), 1}) + selection_digest(tail, {tokens.data() + 1, 2}));
  const std::uint64_t digest = selection_digest(whole, tokens);
  whole.chunks[5] = 3;
  EXPECT_NE(selection_digest(whole, tokens), digest);
}

}  // namespace
}  // namespace ringmark::kernels
