// Approximate lists are made here: exact scores plus noise that goes to the limit of the bound. Whatever is settled
// must be the exact choice.
#include <gtest/gtest.h>

#include <bit>

#include "tests/kernels/cuda/selection_case.h"

namespace ringmark::kernels::cuda {
namespace {

constexpr std::int32_t kTileChunks = LandmarkTiles::kTileChunks;

// The nearest number of fp16.
float rounded(float value) {
  std::byte stored[sizeof(float)];
  narrow(&value, DType::kFloat16, 1, stored);
  float result = 0.0f;
  widen(stored, DType::kFloat16, 1, &result);
  return result;
}

// Two-term landmarks, made on the host.
struct HostTiles {
  explicit HostTiles(const SelectionCase& c)
      : tiles(LandmarkTiles::tiles_of(static_cast<std::int32_t>(c.grid.chunk_count()))),
        terms(SelectionCase::index(c.landmarks.heads * tiles * 2 * kTileChunks * c.landmarks.head_dim * 2)),
        bias(SelectionCase::index(c.landmarks.heads * tiles * kTileChunks), kMinusInfinity),
        exponent_scale(SelectionCase::index(c.landmarks.heads), 0.5f),
        key_norm(SelectionCase::index(c.landmarks.heads), 0.0f),
        residual_norm(SelectionCase::index(c.landmarks.heads), 0.0f) {
    for (std::int64_t head = 0; head < c.landmarks.heads; ++head) {
      for (std::size_t n = 0; n < c.chunks.size(); ++n) split(c, head, n);
    }
  }

  void split(const SelectionCase& c, std::int64_t head, std::size_t n) {
    const float* record = c.records.data() + n * SelectionCase::index(c.landmarks.record_floats());
    const std::int64_t chunk = c.chunks[n].value();
    double key_square = 0.0, rest_square = 0.0;
    for (std::int64_t channel = 0; channel < c.landmarks.head_dim; ++channel) {
      const float key = record[head * c.landmarks.head_dim + channel];
      const float high = rounded(key / 0.5f), low = rounded(key / 0.5f - high);
      store(c, head, chunk, 0, channel, high);
      store(c, head, chunk, 1, channel, low);
      const double rest = double{key} - 0.5 * (double{high} + double{low});
      key_square += double{key} * double{key};
      rest_square += rest * rest;
    }
    const std::size_t at = SelectionCase::index(head);
    key_norm[at] = std::max(key_norm[at], static_cast<float>(std::sqrt(key_square)));
    residual_norm[at] = std::max(residual_norm[at], static_cast<float>(std::sqrt(rest_square)));
    bias[SelectionCase::index(head * tiles * kTileChunks + chunk)] = record[c.landmarks.bias_offset() + head];
  }

  void store(const SelectionCase& c, std::int64_t head, std::int64_t chunk, int term, std::int64_t channel,
             float value) {
    const std::int64_t term_bytes = std::int64_t{kTileChunks} * c.landmarks.head_dim * 2;
    const std::int64_t tile = (head * tiles + chunk / kTileChunks) * 2 + term;
    narrow(&value, DType::kFloat16, 1,
           terms.data() + tile * term_bytes + swizzled_offset(kTileChunks, chunk % kTileChunks, channel));
  }

  std::int32_t tiles;
  std::vector<std::byte> terms;
  std::vector<float> bias;
  std::vector<float> exponent_scale;
  std::vector<float> key_norm;
  std::vector<float> residual_norm;
};

struct HostLists {
  HostLists(const SelectionCase& c, std::int64_t topk)
      : capacity(ApproximateLists::capacity_of(static_cast<std::int32_t>(topk))),
        candidates(SelectionCase::index(c.row_count() * c.problem.heads * capacity)),
        cut(SelectionCase::index(c.row_count() * c.problem.heads), kMinusInfinity),
        sum(cut.size(), float2{kMinusInfinity, 0.0f}) {}

  std::int32_t capacity;
  std::vector<Candidate> candidates;
  std::vector<float> cut;
  std::vector<float2> sum;
};

double query_norm(const SelectionCase& c, std::int64_t row, std::int64_t head) {
  const std::vector<float> query = c.queries.row(row, head);
  return std::sqrt(dot(query, query));
}

std::int64_t landmark_head(const SelectionCase& c, std::int64_t head) {
  return c.landmarks.head_of(head, c.problem.heads);
}

// The largest error that step 1 may make by the residuals of its terms.
double noise_of(const SelectionCase& c, const HostTiles& tiles, std::int64_t row, std::int64_t head) {
  return double{c.problem.scale} * query_norm(c, row, head) *
         double{tiles.residual_norm[SelectionCase::index(landmark_head(c, head))]};
}

// `all`: exact lists of all chunks. Every score goes up or down by the whole noise, at random.
HostLists approximate(SelectionCase& c, const CandidateLists& all, const HostTiles& tiles) {
  HostLists lists(c, c.policy.topk);
  for (std::int64_t row = 0; row < c.row_count(); ++row) {
    for (std::int64_t head = 0; head < c.problem.heads; ++head) {
      std::vector<Candidate> noisy;
      const double noise = 0.999 * noise_of(c, tiles, row, head);
      for (const Candidate& exact : all.list(row, head)) {
        if (exact.chunk < 0) break;
        noisy.push_back({static_cast<float>(exact.score + (c.one_in(2) ? noise : -noise)), exact.chunk});
      }
      std::sort(noisy.begin(), noisy.end(), better);
      const std::size_t at = SelectionCase::index(row * c.problem.heads + head);
      const std::size_t listed = std::min(noisy.size(), SelectionCase::index(c.policy.topk + 4));
      if (noisy.empty()) continue;
      float2& sum = lists.sum[at];
      sum = {noisy[0].score, 0.0f};
      for (const Candidate& candidate : noisy) sum.y += std::exp(candidate.score - sum.x);
      if (listed < noisy.size()) lists.cut[at] = noisy[listed].score;
      noisy.resize(SelectionCase::index(lists.capacity));
      for (std::size_t i = listed; i < noisy.size(); ++i) noisy[i] = Candidate();
      std::shuffle(noisy.begin(), noisy.end(), c.random);
      std::copy(noisy.begin(), noisy.end(), lists.candidates.begin() + static_cast<std::ptrdiff_t>(at * noisy.size()));
    }
  }
  return lists;
}

struct Settled {
  std::vector<std::int32_t> selection;
  std::vector<float> chosen_scores;
  std::vector<char> open;  // by (row, kv head)
  std::int64_t open_count = 0;
};

Settled settle(const SelectionCase& c, DeviceSelectionCase& device, const HostTiles& tiles, const HostLists& lists) {
  const auto terms = upload(tiles.terms, device.stream);
  const auto bias = upload(tiles.bias, device.stream);
  const auto exponent_scale = upload(tiles.exponent_scale, device.stream);
  const auto key_norm = upload(tiles.key_norm, device.stream);
  const auto residual_norm = upload(tiles.residual_norm, device.stream);
  const auto candidates = upload(lists.candidates, device.stream);
  const auto cut = upload(lists.cut, device.stream);
  const auto sum = upload(lists.sum, device.stream);
  const std::int64_t pairs = c.row_count() * c.problem.kv_heads;
  ringmark::cuda::Buffer<ScoringItem> open(pairs);
  ringmark::cuda::Buffer<unsigned long long> open_count(1);
  open_count.fill_bytes(0, device.stream);
  settle_choices(device.shape, device.queries.data(), {0, c.row_count()},
                 {tiles.tiles, terms.data(), bias.data(), exponent_scale.data(), key_norm.data(), residual_norm.data()},
                 device.records.data(), {lists.capacity, candidates.data(), cut.data(), sum.data()},
                 device.lse_window.data(), device.selection.data(), device.chosen_scores.data(), open.data(),
                 open_count.data(), device.stream);
  Settled settled{download(device.selection, device.stream), download(device.chosen_scores, device.stream),
                  std::vector<char>(SelectionCase::index(pairs), 0), 0};
  settled.open_count = static_cast<std::int64_t>(download(open_count, device.stream)[0]);
  const std::vector<ScoringItem> items = download(open, device.stream);
  for (std::int64_t n = 0; n < settled.open_count; ++n) {
    const ScoringItem& item = items[SelectionCase::index(n)];
    settled.open[SelectionCase::index(item.row * c.problem.kv_heads + item.kv_head)] = 1;
  }
  return settled;
}

// A pair that is open has not been written: it takes the exact choice for the comparison.
void compare(const SelectionCase& c, const CandidateLists& all, const HostTiles& tiles, Settled settled,
             Differences& differences) {
  const Selection want = c.select(all);
  for (std::int64_t row = 0; row < c.row_count(); ++row) {
    for (std::int64_t kv_head = 0; kv_head < c.problem.kv_heads; ++kv_head) {
      if (settled.open[SelectionCase::index(row * c.problem.kv_heads + kv_head)] == 0) continue;
      const auto slots = want.slots(row, kv_head);
      std::copy(slots.begin(), slots.end(),
                settled.selection.begin() + (row * c.problem.kv_heads + kv_head) * want.topk);
    }
  }
  compare_selections(settled.selection, want, differences);
  std::vector<float> of_chunk(SelectionCase::index(c.grid.chunk_count()), kNaN);
  for (std::int64_t row = 0; row < c.row_count(); ++row) {
    for (std::int64_t head = 0; head < c.problem.heads; ++head) {
      const std::int64_t kv_head = head / c.problem.group();
      if (settled.open[SelectionCase::index(row * c.problem.kv_heads + kv_head)] != 0) continue;
      for (const Candidate& candidate : all.list(row, head)) {
        if (candidate.chunk >= 0) of_chunk[SelectionCase::index(candidate.chunk)] = candidate.score;
      }
      const double bound = 1.01 * noise_of(c, tiles, row, head) + 1e-5;
      const auto slots = want.slots(row, kv_head);
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const float exact = slots[slot] < 0 ? kMinusInfinity : of_chunk[SelectionCase::index(slots[slot])];
        const float got =
            settled.chosen_scores[SelectionCase::index((row * c.problem.heads + head) * want.topk) + slot];
        if (got == exact || std::fabs(double{got} - double{exact}) <= bound) continue;
        differences.add("chosen score of row " + std::to_string(row) + " head " + std::to_string(head) + " slot " +
                            std::to_string(slot),
                        got, exact);
      }
    }
  }
}

struct Shape {
  std::int64_t group;
  std::int64_t topk;
  std::int64_t head_dim;
  DType dtype;
  Scorer scorer;
};

std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const std::int64_t group : {1, 2, 4, 8, 16}) {
    for (const std::int64_t topk : {1, 5, 16, 32, 64}) {
      const bool wide = (group + topk) % 2 == 0;
      shapes.push_back({group, topk, wide ? 128 : 64, topk % 3 == 1 ? DType::kBfloat16 : DType::kFloat16,
                        group % 3 == 1 ? Scorer::kHils : Scorer::kMean});
    }
  }
  shapes.push_back({4, 16, 128, DType::kBfloat16, Scorer::kHils});
  return shapes;
}

SelectionCase make_case(const Shape& shape, std::int64_t chunks, std::int64_t rows) {
  AttentionProblem problem;
  problem.tokens = chunks * 64;
  problem.kv_heads = 2;
  problem.heads = 2 * shape.group;
  problem.head_dim = shape.head_dim;
  problem.dtype = shape.dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  AttentionPolicy policy;
  policy.window = 128;
  policy.topk = shape.topk;
  policy.scorer = shape.scorer;
  std::vector<TokenId> tokens;
  for (std::int64_t row = 0; row < rows; ++row) tokens.emplace_back((row + 1) * problem.tokens / rows - 1);
  return {problem, policy, tokens, static_cast<std::uint64_t>(shape.group * 1000 + shape.topk)};
}

std::string describe(const Shape& shape) {
  return "group " + std::to_string(shape.group) + ", topk " + std::to_string(shape.topk) + ", head_dim " +
         std::to_string(shape.head_dim) + ", " + std::string(name_of(shape.dtype)) + ", " +
         std::string(name_of(shape.scorer));
}

TEST(SettleChoices, settled_choices_are_exact_and_most_are_settled) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const Shape& shape : all_shapes()) {
    SelectionCase c = make_case(shape, 300, 150);
    c.fill_records(0);
    const HostTiles tiles(c);
    const CandidateLists all = c.score(c.grid.chunk_count());
    const HostLists lists = approximate(c, all, tiles);
    DeviceSelectionCase device(c);
    const Settled settled = settle(c, device, tiles, lists);
    Differences differences;
    compare(c, all, tiles, settled, differences);
    EXPECT_EQ(differences.text(), "") << describe(shape);
    const double share = static_cast<double>(settled.open_count) / static_cast<double>(settled.open.size());
    std::printf("%s: %.2f%% open\n", describe(shape).c_str(), 100.0 * share);
    EXPECT_LE(share, 0.1) << describe(shape);
  }
}

// Noise as of one-term landmarks: many choices hang on it, and none of them may be settled wrongly.
TEST(SettleChoices, settled_choices_are_exact_under_large_errors) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const Shape& shape : all_shapes()) {
    for (const float residual : {1e-3f, 1e-2f}) {
      SelectionCase c = make_case(shape, 200, 100);
      c.fill_records(0);
      HostTiles tiles(c);
      for (std::size_t head = 0; head < tiles.key_norm.size(); ++head) {
        tiles.residual_norm[head] = residual * tiles.key_norm[head];
      }
      const CandidateLists all = c.score(c.grid.chunk_count());
      const HostLists lists = approximate(c, all, tiles);
      DeviceSelectionCase device(c);
      const Settled settled = settle(c, device, tiles, lists);
      Differences differences;
      compare(c, all, tiles, settled, differences);
      EXPECT_EQ(differences.text(), "") << describe(shape);
      const double share = static_cast<double>(settled.open_count) / static_cast<double>(settled.open.size());
      std::printf("%s, residual %g: %.1f%% open\n", describe(shape).c_str(), double{residual}, 100.0 * share);
    }
  }
}

// Every chunk twice, and an odd number of chosen ones: the last place is always a tie. Exact scores of the listed
// chunks settle it: no other chunk is in the way unless it comes close, too.
TEST(SettleChoices, ties_go_to_the_lower_chunk) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  for (const Shape& shape : all_shapes()) {
    if (shape.topk % 2 == 0) continue;
    SelectionCase c = make_case(shape, 200, 60);
    c.fill_records(0);
    const std::size_t record = SelectionCase::index(c.landmarks.record_floats());
    for (std::size_t n = 0; n + 1 < c.chunks.size(); n += 2) {
      std::copy_n(c.records.begin() + static_cast<std::ptrdiff_t>(n * record), record,
                  c.records.begin() + static_cast<std::ptrdiff_t>((n + 1) * record));
    }
    const HostTiles tiles(c);
    const CandidateLists all = c.score(c.grid.chunk_count());
    const HostLists lists = approximate(c, all, tiles);
    DeviceSelectionCase device(c);
    const Settled settled = settle(c, device, tiles, lists);
    Differences differences;
    compare(c, all, tiles, settled, differences);
    EXPECT_EQ(differences.text(), "") << describe(shape);
    const double share = static_cast<double>(settled.open_count) / static_cast<double>(settled.open.size());
    std::printf("%s: %.1f%% open\n", describe(shape).c_str(), 100.0 * share);
    EXPECT_LE(share, 0.1) << describe(shape);
  }
}

TEST(SettleChoices, what_is_not_a_number_stays_open) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kMma);
  const Shape shape{4, 16, 128, DType::kBfloat16, Scorer::kHils};
  SelectionCase c = make_case(shape, 100, 40);
  c.fill_records(0);
  const HostTiles tiles(c);
  const CandidateLists all = c.score(c.grid.chunk_count());
  HostLists lists = approximate(c, all, tiles);
  const std::int64_t last = c.row_count() - 1;
  const auto at = [&](std::int64_t row, std::int64_t head) {
    return SelectionCase::index(row * c.problem.heads + head);
  };
  lists.sum[at(last, 0)].y = kNaN;
  lists.cut[at(last - 1, 1)] = kNaN;
  lists.candidates[at(last - 2, 2) * SelectionCase::index(lists.capacity)] = {kNaN, 3};
  c.lse_window[at(last - 3, 3)] = kNaN;
  DeviceSelectionCase device(c);
  const Settled settled = settle(c, device, tiles, lists);
  for (std::int64_t row = last - 3; row <= last; ++row) {
    EXPECT_EQ(settled.open[SelectionCase::index(row * c.problem.kv_heads)], 1) << "row " << row;
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
