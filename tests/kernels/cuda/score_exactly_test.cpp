#include <gtest/gtest.h>

#include <bit>
#include <optional>

#include "kernels/cuda/few/attend.h"
#include "tests/kernels/cuda/selection_case.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

std::vector<ScoringItem> all_items(const SelectionCase& c) {
  std::vector<ScoringItem> items;
  for (std::int64_t row = 0; row < c.row_count(); ++row) {
    for (std::int32_t head = 0; head < c.problem.kv_heads; ++head) items.push_back({row, head, 0});
  }
  return items;
}

std::string describe(const SelectionCase& c) {
  return "tokens " + std::to_string(c.problem.tokens) + ", chunk_size " + std::to_string(c.problem.chunk_size) +
         ", heads " + std::to_string(c.problem.heads) + "/" + std::to_string(c.problem.kv_heads) + ", head_dim " +
         std::to_string(c.problem.head_dim) + ", topk " + std::to_string(c.policy.topk) + ", window " +
         std::to_string(c.policy.window) + ", scorer " + std::string(name_of(c.policy.scorer)) + ", dtype " +
         std::string(name_of(c.problem.dtype)) + ", chunks " + std::to_string(c.chunks.size()) + "\n";
}

// Exact lists of some items, and the choice that follows from them. splits: parts of the chunks that are scored side by
// side and joined.
struct ExactRun {
  ExactRun(const SelectionCase& c, DeviceSelectionCase& device, const std::vector<ScoringItem>& chosen_items,
           const std::optional<ChunkSplits>& splits = std::nullopt)
      : items(chosen_items) {
    const auto count = static_cast<std::int64_t>(items.size());
    const auto device_items = upload(items, device.stream);
    ringmark::cuda::Buffer<Candidate> device_candidates(count * device.shape.group * device.shape.topk);
    ringmark::cuda::Buffer<LogSum> device_sums(count * device.shape.group);
    device_candidates.fill_bytes(0x77, device.stream);
    device_sums.fill_bytes(0x77, device.stream);
    if (splits) {
      ringmark::cuda::Buffer<Candidate> split_candidates(splits->count * device_candidates.size());
      ringmark::cuda::Buffer<LogSum> split_sums(splits->count * device_sums.size());
      split_candidates.fill_bytes(0x77, device.stream);
      split_sums.fill_bytes(0x77, device.stream);
      score_splits_exactly(device.shape, device.geometry(), device.queries.data(), device_items.data(), count,
                           device.records.data(), *splits, split_candidates.data(), split_sums.data(), device.stream);
      join_lists(device.shape, count, splits->count, nullptr, split_candidates.data(), split_sums.data(),
                 device_candidates.data(), device_sums.data(), device.stream);
      device.stream.wait();
    } else {
      score_exactly(device.shape, device.geometry(), device.queries.data(), device_items.data(), count,
                    device.records.data(), device_candidates.data(), device_sums.data(), device.stream);
    }
    select_exactly(device.shape, device.queries.data(), device_items.data(), count, device.records.data(),
                   device_candidates.data(), device_sums.data(), device.lse_window.data(), device.selection.data(),
                   device.chosen_scores.data(), device.stream);
    candidates = download(device_candidates, device.stream);
    sums = download(device_sums, device.stream);
    selection = download(device.selection, device.stream);
    chosen_scores = download(device.chosen_scores, device.stream);
    group = c.problem.group();
  }

  // Bit for bit.
  void compare(const CandidateLists& want, Differences& differences) const {
    for (std::size_t n = 0; n < items.size(); ++n) {
      for (std::int64_t h = 0; h < group; ++h) {
        const std::int64_t head = items[n].kv_head * group + h;
        const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(n) * group + h);
        const std::string where =
            "item " + std::to_string(n) + " row " + std::to_string(items[n].row) + " head " + std::to_string(head);
        compare_sum(where, sums[at], want.sum(items[n].row, head), differences);
        for (std::int64_t slot = 0; slot < want.topk; ++slot) {
          const Candidate& expected = want.list(items[n].row, head)[static_cast<std::size_t>(slot)];
          const Candidate& got = candidates[at * static_cast<std::size_t>(want.topk) + static_cast<std::size_t>(slot)];
          const std::string place = where + " slot " + std::to_string(slot);
          if (got.chunk != expected.chunk) differences.add(place + " chunk", got.chunk, expected.chunk);
          if (bits(got.score) != bits(expected.score)) differences.add(place + " score", got.score, expected.score);
        }
      }
    }
  }

  std::vector<ScoringItem> items;
  std::int64_t group = 1;
  std::vector<Candidate> candidates;
  std::vector<LogSum> sums;
  std::vector<std::int32_t> selection;
  std::vector<float> chosen_scores;

 private:
  static void compare_sum(const std::string& where, const LogSum& got, const LogSum& want, Differences& differences) {
    if (got.place != want.place) differences.add(where + " place", got.place, want.place);
    if (got.high != want.high) differences.add(where + " high", got.high, want.high);
    if (got.low != want.low) differences.add(where + " low", got.low, want.low);
  }
};

// Scores of all chosen chunks by lists that hold every chunk.
void compare_chosen_scores(const SelectionCase& c, const CandidateLists& all, const Selection& selection,
                           const std::vector<float>& got, Differences& differences) {
  std::vector<float> of_chunk(SelectionCase::index(c.grid.chunk_count()));
  for (std::int64_t row = 0; row < c.row_count(); ++row) {
    for (std::int64_t head = 0; head < c.problem.heads; ++head) {
      std::fill(of_chunk.begin(), of_chunk.end(), kNaN);
      for (const Candidate& candidate : all.list(row, head)) {
        if (candidate.chunk >= 0) of_chunk[SelectionCase::index(candidate.chunk)] = candidate.score;
      }
      const auto slots = selection.slots(row, head / c.problem.group());
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const float want = slots[slot] < 0 ? kMinusInfinity : of_chunk[SelectionCase::index(slots[slot])];
        const float score = got[SelectionCase::index((row * c.problem.heads + head) * selection.topk) + slot];
        if (bits(score) == bits(want) || (std::isnan(score) && std::isnan(want))) continue;
        differences.add("chosen score of row " + std::to_string(row) + " head " + std::to_string(head) + " slot " +
                            std::to_string(slot),
                        score, want);
      }
    }
  }
}

// All rows, in a shuffled order, against the CPU.
void expect_exact(SelectionCase& c, const std::string& what) {
  DeviceSelectionCase device(c);
  std::vector<ScoringItem> items = all_items(c);
  std::shuffle(items.begin(), items.end(), c.random);
  const ExactRun run(c, device, items);
  const CandidateLists want = c.score(c.policy.topk);
  Differences differences;
  run.compare(want, differences);
  const auto chunks = static_cast<std::int32_t>(c.grid.chunk_count());
  const auto length = static_cast<std::int32_t>(chunks / 32 + 1 + c.random() % static_cast<std::uint64_t>(chunks));
  const ExactRun joined(c, device, items, ChunkSplits{0, length, (chunks + length - 1) / length});
  joined.compare(want, differences);
  const Selection selection = c.select(want);
  compare_selections(run.selection, selection, differences);
  compare_selections(joined.selection, selection, differences);
  const CandidateLists all = c.score(c.grid.chunk_count());
  compare_chosen_scores(c, all, selection, run.chosen_scores, differences);

  device.chosen_scores.fill_bytes(0xFF, device.stream);
  score_chosen(device.shape, device.queries.data(), {0, c.row_count()}, device.selection.data(), device.records.data(),
               device.chosen_scores.data(), device.stream);
  compare_chosen_scores(c, all, selection, download(device.chosen_scores, device.stream), differences);
  device.chosen_scores.fill_bytes(0xFF, device.stream);
  few::score_chosen(device.shape, device.queries.data(), {0, c.row_count()}, device.selection.data(),
                    device.records.data(), device.chosen_scores.data(), device.stream);
  compare_chosen_scores(c, all, selection, download(device.chosen_scores, device.stream), differences);
  ASSERT_EQ(differences.text(), "") << what << ": " << describe(c);
}

TEST(ScoreExactly, random_problems_match_the_cpu_bit_for_bit) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::mt19937_64 random(5);
  for (int round = 0; round < 150; ++round) {
    const AttentionProblem problem = random_problem(random);
    AttentionPolicy policy = random_policy(random, problem);
    policy.topk = std::max<std::int64_t>(1, policy.topk);
    policy.scorer = pick(random, std::vector<Scorer>{Scorer::kHils, Scorer::kMean, Scorer::kOracle});
    SelectionCase c(problem, policy, all_tokens(problem.tokens), random());
    if (c.one_in(2)) c.leave_gaps();
    c.fill_records(4);
    expect_exact(c, "round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
}

// One row that sees every score of a list: head_dim 1, query 1 and landmark keys equal to the scores.
void expect_crafted(const std::vector<float>& scores, const std::string& what) {
  for (const std::int64_t topk : {1, 8, 16, 17, 32, 33, 64, 200, 2000, 4096}) {
    AttentionProblem problem;
    problem.tokens = static_cast<std::int64_t>(scores.size()) + 1;
    problem.head_dim = 1;
    problem.chunk_size = 1;
    problem.dtype = DType::kFloat32;
    problem.scale = 1.0f;
    AttentionPolicy policy;
    policy.window = 0;
    policy.topk = topk;
    SelectionCase c(problem, policy, {TokenId(problem.tokens - 1)}, 1);
    const float one = 1.0f;
    std::memcpy(const_cast<std::byte*>(c.queries.view().data), &one, sizeof one);
    c.chunks.pop_back();
    for (const float score : scores) c.records.insert(c.records.end(), {score, 0.0f});
    expect_exact(c, what + ", topk " + std::to_string(topk));
    if (testing::Test::HasFatalFailure()) return;
  }
}

std::vector<float> random_scores(std::int64_t count, float spread) {
  std::mt19937_64 random(17);
  std::vector<float> scores = normal_floats(random, count);
  for (float& score : scores) score *= spread;
  return scores;
}

TEST(ScoreExactly, scores_in_any_order) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::vector<float> scores = random_scores(3000, 1.0f);
  expect_crafted(scores, "random");
  std::sort(scores.begin(), scores.end());
  expect_crafted(scores, "ascending");
  std::reverse(scores.begin(), scores.end());
  expect_crafted(scores, "descending");
}

TEST(ScoreExactly, sums_of_scores_of_any_size) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::vector<float> scores;
  for (int i = -1500; i < 1500; ++i) scores.push_back(0.6931472f * static_cast<float>(i));
  expect_crafted(scores, "all exponents");
  for (const float spread : {40.0f, 1e4f, 1e8f, 1e30f}) {
    expect_crafted(random_scores(1500, spread), "spread " + std::to_string(spread));
  }
  for (int exponent = 26; exponent <= 33; ++exponent) {
    expect_crafted(std::vector<float>(1000, 0.6931472f * static_cast<float>(exponent) + 0.3f),
                   "exponent " + std::to_string(exponent));
  }
}

TEST(ScoreExactly, equal_scores_go_to_the_lower_chunk) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  expect_crafted(std::vector<float>(2500, 0.25f), "all equal");
  std::vector<float> zeros(700, 0.0f);
  for (std::size_t i = 0; i < zeros.size(); i += 3) zeros[i] = -0.0f;
  expect_crafted(zeros, "zeros of both signs");
  std::vector<float> few = random_scores(2500, 1.0f);
  for (float& score : few) score = std::round(score);
  expect_crafted(few, "few values");
}

TEST(ScoreExactly, nan_never_enters_and_infinitely_low_scores_come_last) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  std::vector<float> scores = random_scores(1000, 1.0f);
  for (std::size_t i = 0; i < scores.size(); i += 3) scores[i] = kNaN;
  expect_crafted(scores, "some NaN");
  for (std::size_t i = 1; i < scores.size(); i += 2) scores[i] = -kInfinity;
  expect_crafted(scores, "some minus infinity");
  expect_crafted(std::vector<float>(300, kNaN), "all NaN");
  expect_crafted(std::vector<float>(300, -kInfinity), "all minus infinity");
}

// More items than are gathered at a time, in list order and shuffled, some heads more often than others.
TEST(ScoreExactly, many_scattered_items_match_the_cpu_bit_for_bit) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  for (const Scorer scorer : {Scorer::kHils, Scorer::kMean}) {
    AttentionProblem problem;
    problem.tokens = 9000;
    problem.chunk_size = 16;
    problem.heads = 8;
    problem.kv_heads = 4;
    problem.head_dim = 128;
    problem.scale = 0.0883883476f;
    AttentionPolicy policy;
    policy.window = 64;
    policy.topk = 16;
    policy.scorer = scorer;
    std::vector<TokenId> tokens;
    for (std::int64_t token = 5; token < problem.tokens; token += 4) tokens.emplace_back(token);
    SelectionCase c(problem, policy, tokens, 77);
    c.fill_records(6);
    std::vector<ScoringItem> items = all_items(c);
    std::erase_if(items, [&](const ScoringItem& item) { return item.kv_head == 2 && !c.one_in(10); });
    DeviceSelectionCase device(c);
    const CandidateLists want = c.score(policy.topk);
    for (int order = 0; order < 2; ++order) {
      Differences differences;
      ExactRun(c, device, items).compare(want, differences);
      ASSERT_EQ(differences.text(), "") << name_of(scorer) << ", order " << order;
      std::shuffle(items.begin(), items.end(), c.random);
    }
  }
}

TEST(ScoreExactly, no_items_are_fine) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  SelectionCase c(AttentionProblem{.tokens = 640}, AttentionPolicy{}, all_tokens(640), 3);
  c.fill_records(0);
  DeviceSelectionCase device(c);
  ExactRun(c, device, {});
}

// Two parts of three chunks, of which this rank's are 5, 8, 9 and 20: by hand.
TEST(JoinLists, two_lists_by_hand) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kSimt);
  const ringmark::cuda::Stream stream;
  LayerShape shape;
  shape.topk = 3;
  const std::vector<std::int32_t> ids = {5, 8, 9, 20};
  const std::vector<Candidate> parts = {{2.0f, 1}, {1.0f, 0}, {0.0f, -1}, {3.0f, 3}, {2.0f, 2}, {0.0f, -1}};
  LogSum low, high;
  low.add(1.0f);
  high.add(40.0f);
  LogSum sum = low;
  sum.add(high);
  const auto device_ids = upload(ids, stream);
  const auto candidates = upload(parts, stream);
  const auto sums = upload(std::vector<LogSum>{low, high}, stream);
  const ringmark::cuda::Buffer<Candidate> joined(3);
  const ringmark::cuda::Buffer<LogSum> joined_sum(1);
  join_lists(shape, 1, 2, device_ids.data(), candidates.data(), sums.data(), joined.data(), joined_sum.data(), stream);
  const std::vector<Candidate> got = download(joined, stream);
  const std::vector<Candidate> want = {{3.0f, 20}, {2.0f, 8}, {2.0f, 9}};
  for (std::size_t slot = 0; slot < want.size(); ++slot) {
    EXPECT_EQ(got[slot].chunk, want[slot].chunk) << slot;
    EXPECT_EQ(got[slot].score, want[slot].score) << slot;
  }
  const LogSum got_sum = download(joined_sum, stream).front();
  EXPECT_EQ(got_sum.place, sum.place);
  EXPECT_EQ(got_sum.high, sum.high);
  EXPECT_EQ(got_sum.low, sum.low);
}

}  // namespace
}  // namespace ringmark::kernels::cuda
