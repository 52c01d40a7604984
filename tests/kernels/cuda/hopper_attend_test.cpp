#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <thread>

#include "kernels/attend_chunks.h"
#include "kernels/attend_window.h"
#include "kernels/cuda/hopper/attend.h"
#include "tests/kernels/cuda/device_case.h"
#include "tests/kernels/random_selection.h"

namespace ringmark::kernels::cuda {
namespace {

// Weights are fp16 in every layer: 2^-12 of values up to 5.
constexpr double kOutBound = 1.5e-3;
constexpr double kMeanBound = 6e-5;
constexpr double kLseBound = 2e-5;

int host_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

double mean_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double sum = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += std::fabs(double{got[i]} - double{want[i]});
  return sum / static_cast<double>(got.size());
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_close(const AttentionProblem& p, const Results& got, const Results& want) {
  EXPECT_EQ(first_differences(got.out, want.out, p.heads, p.head_dim, kOutBound), "");
  EXPECT_LE(mean_difference(got.out, want.out), kMeanBound);
}

std::string words(const AttentionProblem& p, const AttentionPolicy& policy) {
  std::ostringstream text;
  text << name_of(p.dtype) << " d " << p.head_dim << " group " << p.group() << " tokens " << p.tokens << " slots "
       << p.landmark_slots << " window " << policy.window << " sinks " << policy.sinks << " topk " << policy.topk
       << " documents";
  for (const std::int64_t start : p.cu_seqlens) text << ' ' << start;
  return text.str();
}

AttentionProblem problem_of(DType dtype, std::int64_t head_dim, std::int64_t group, std::int64_t tokens,
                            std::mt19937_64& random) {
  AttentionProblem problem;
  problem.dtype = dtype;
  problem.head_dim = head_dim;
  problem.kv_heads = group == 16 ? 1 : 2;
  problem.heads = problem.kv_heads * group;
  problem.tokens = tokens;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  problem.landmark_slots = pick<int>(random, {0, 1}) == 1;
  if (pick<int>(random, {0, 1}) == 0) {
    std::vector<std::int64_t> cuts = {0, tokens};
    for (int i = 0; i < 4; ++i) cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, tokens)(random));
    std::sort(cuts.begin(), cuts.end());
    problem.cu_seqlens = cuts;
  }
  return problem;
}

AttentionPolicy policy_of(const AttentionProblem& problem, std::mt19937_64& random) {
  AttentionPolicy policy;
  policy.window = pick<std::int64_t>(random, {0, 1, 64, 100, problem.tokens + 1});
  policy.sinks = pick<std::int64_t>(random, {0, 0, 1, 4, 66});
  policy.topk = pick<std::int64_t>(random, {1, 3, 8, 64});
  return policy;
}

// Calls check(problem, random) for every type, width and group, each with some of the token counts.
template <class Check>
void for_shapes(std::uint64_t seed, Check check) {
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t group : {1, 2, 4, 8, 16}) {
        for (const std::int64_t tokens : {1, 63, 64, 65, 129, 331, 700}) {
          check(problem_of(dtype, head_dim, group, tokens, random), random);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

std::vector<std::int64_t> random_cuts(std::int64_t rows, std::mt19937_64& random) {
  std::vector<std::int64_t> cuts = {0};
  while (cuts.back() < rows) {
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(cuts.back() + 1, rows)(random));
  }
  return cuts;
}

Results window_on_cpu(const AttentionCase& c) {
  Results results(c.problem, c.problem.tokens);
  kernels::attend_window(c.problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), results.out_view(),
                         results.lse_view(), host_threads());
  return results;
}

void attend_window(DeviceCase& device, RowRange rows) {
  hopper::attend_window(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                        device.out.data(), device.lse.data(), device.stream);
}

TEST(HopperAttendWindow, random_problems_match_the_cpu) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(1, [](const AttentionProblem& problem, std::mt19937_64& random) {
    const AttentionCase c(problem, policy_of(problem, random), random());
    SCOPED_TRACE(words(problem, c.policy));
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results got = device.results(c), want = window_on_cpu(c);
    expect_close(problem, got, want);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, kLseBound), "");
  });
}

TEST(HopperAttendWindow, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(2, [](const AttentionProblem& problem, std::mt19937_64& random) {
    const AttentionCase c(problem, policy_of(problem, random), random());
    SCOPED_TRACE(words(problem, c.policy));
    DeviceCase whole(c, Path::kHopper), parts(c, Path::kHopper);
    attend_window(whole, whole.all());
    const std::vector<std::int64_t> cuts = random_cuts(problem.tokens, random);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) attend_window(parts, {cuts[i], cuts[i + 1]});
    const Results a = whole.results(c), b = parts.results(c);
    EXPECT_EQ(first_differences(b.out, a.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(a.out, b.out) && same_bits(a.lse, b.lse));
  });
}

// A rank may hold distant pieces of the sequence; a tile may then see distant chunks.
TEST(HopperAttendWindow, rows_may_come_in_any_order_of_tokens) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(3, [](const AttentionProblem& problem, std::mt19937_64& random) {
    AttentionCase c(problem, policy_of(problem, random), random());
    SCOPED_TRACE(words(problem, c.policy));
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results ordered = device.results(c);

    std::vector<TokenId> tokens = c.tokens;
    const auto piece = static_cast<std::ptrdiff_t>(random() % tokens.size());
    std::rotate(tokens.begin(), tokens.begin() + piece, tokens.end());
    const std::int64_t floats = problem.heads * problem.head_dim;
    std::vector<float> values = AttentionCase::all_rows(c.queries);
    std::rotate(values.begin(), values.begin() + piece * floats, values.end());
    const StoredTensor queries(problem.dtype, problem.tokens, problem.heads, problem.head_dim, values);
    const auto device_queries = upload(queries.view(), device.stream);
    const auto rows = upload(row_geometry(c.grid, tokens), device.stream);
    device.out.fill_bytes(0xFF, device.stream);
    hopper::attend_window(device.shape, {rows.data(), device.geometry().chunks, problem.tokens}, device.blocks.view(),
                          device_queries.data(), device.all(), device.out.data(), device.lse.data(), device.stream);
    Results rotated = device.results(c);
    std::rotate(rotated.out.begin(), rotated.out.end() - piece * floats, rotated.out.end());
    std::rotate(rotated.lse.begin(), rotated.lse.end() - piece * problem.heads, rotated.lse.end());
    EXPECT_EQ(first_differences(rotated.out, ordered.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(rotated.out, ordered.out) && same_bits(rotated.lse, ordered.lse));
  });
}

// Enough tiles for several a thread block, and long enough for the maximum to move.
TEST(HopperAttendWindow, a_long_dense_problem_matches_the_cpu) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionProblem problem{.tokens = 6000,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_dim = head_dim,
                                   .dtype = DType::kBfloat16,
                                   .scale = 0.5f,
                                   .cu_seqlens = {}};
    const AttentionCase c(problem, {.window = 6000, .topk = 0}, 4);
    DeviceCase device(c, Path::kHopper);
    attend_window(device, device.all());
    const Results got = device.results(c), want = window_on_cpu(c);
    expect_close(problem, got, want);
    EXPECT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, 1e-4), "");
  }
}

// A selection with scores and window results of its own.
struct ChosenCase : AttentionCase {
  ChosenCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : AttentionCase(p, wanted, seed), selection(p.tokens, p.kv_heads, wanted.topk), window(p, p.tokens) {
    landmarks.shape = {p.heads, 1, p.head_dim};
    records = normal_floats(random, grid.chunk_count() * landmarks.shape.record_floats());
    for (std::int64_t chunk = 0; chunk < grid.chunk_count(); ++chunk) {
      landmarks.records.push_back(records.data() + chunk * landmarks.shape.record_floats());
    }
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads; ++kv_head) choose(row, kv_head);
    }
    window.out = normal_floats(random, static_cast<std::int64_t>(window.out.size()));
    window.lse = normal_floats(random, static_cast<std::int64_t>(window.lse.size()));
    empty_windows();
    weigh();
  }

  void choose(std::int64_t row, std::int64_t kv_head) {
    choose_at_random(grid, random, 1, row, kv_head, selection,
                     [&] { return static_cast<std::size_t>(selection.topk); });
  }

  // Some rows saw no key in their window; what stands in their output must not matter.
  void empty_windows() {
    for (std::int64_t row = 0; row < problem.tokens; row += 7) {
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        if (selection.chosen(row, head / problem.group()).empty()) continue;
        const std::int64_t at = row * problem.heads + head;
        window.lse[static_cast<std::size_t>(at)] = kMinusInfinity;
        std::fill_n(window.out.begin() + at * problem.head_dim, problem.head_dim, kNaN);
      }
    }
  }

  // As weigh_chunks does it.
  void weigh() {
    scores.assign(static_cast<std::size_t>(problem.tokens * problem.heads * selection.topk), kMinusInfinity);
    window_weight.assign(static_cast<std::size_t>(problem.tokens * problem.heads), 1.0f);
    for (std::int64_t row = 0; row < problem.tokens; ++row) {
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        const auto chosen = selection.chosen(row, head / problem.group());
        if (chosen.empty()) continue;
        const std::vector<float> query = queries.row(row, head);
        const auto at = static_cast<std::size_t>(row * problem.heads + head);
        std::vector<double> of_chunks;
        double total = std::exp(double{window.lse[at]});
        for (const std::int32_t chunk : chosen) {
          const float* record = landmarks.of(ChunkId(chunk));
          const float* key = record + head * problem.head_dim;
          of_chunks.push_back(double{record[landmarks.shape.bias_offset() + head]} +
                              double{problem.scale} * dot(query, {key, key + problem.head_dim}));
          total += std::exp(of_chunks.back());
        }
        for (std::size_t slot = 0; slot < of_chunks.size(); ++slot) {
          scores[at * static_cast<std::size_t>(selection.topk) + slot] =
              static_cast<float>(of_chunks[slot] - std::log(total));
        }
        window_weight[at] = static_cast<float>(std::exp(double{window.lse[at]}) / total);
      }
    }
  }

  Results on_cpu() const {
    Results results = window;
    attend_chunks(problem, grid, queries.view(), queries.view(), selection, all(), blocks.table(), landmarks,
                  results.out_view(), results.lse_view(), host_threads());
    return results;
  }

  std::vector<float> records;
  LandmarkRecords landmarks;
  Selection selection;
  Results window;
  std::vector<float> scores;
  std::vector<float> window_weight;
};

// The union plan of a range, by the plainest reading of its definition.
struct HostPlan {
  HostPlan(const ChosenCase& c, RowRange rows, cudaStream_t stream) {
    const std::int64_t tile_queries = 128 / c.problem.group(), half_queries = tile_queries / 2;
    tiles = (rows.size() + tile_queries - 1) / tile_queries;
    std::vector<UnionItem> all;
    std::vector<std::int64_t> starts = {0};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t kv_head = 0; kv_head < c.problem.kv_heads; ++kv_head) {
        std::vector<UnionItem> of_chunk(static_cast<std::size_t>(c.grid.chunk_count()));
        for (std::int64_t q = 0; q < tile_queries; ++q) {
          const std::int64_t row = rows.begin + tile * tile_queries + q;
          if (row >= rows.end) break;
          for (const std::int32_t chunk : c.selection.chosen(row, kv_head)) {
            of_chunk[static_cast<std::size_t>(chunk)].members[q / half_queries] |= std::uint64_t{1}
                                                                                   << (q % half_queries);
          }
        }
        for (std::size_t chunk = 0; chunk < of_chunk.size(); ++chunk) {
          if ((of_chunk[chunk].members[0] | of_chunk[chunk].members[1]) == 0) continue;
          of_chunk[chunk].chunk = static_cast<std::int32_t>(chunk);
          all.push_back(of_chunk[chunk]);
        }
        starts.push_back(static_cast<std::int64_t>(all.size()));
      }
    }
    if (all.empty()) all.emplace_back();
    items = upload(all, stream);
    offsets = upload(starts, stream);
  }

  UnionPlan view(std::int64_t group) const {
    return {static_cast<std::int32_t>(128 / group), tiles, items.data(), offsets.data()};
  }

  std::int64_t tiles;
  ringmark::cuda::Buffer<UnionItem> items;
  ringmark::cuda::Buffer<std::int64_t> offsets;
};

// Results over the given cuts of the rows, one call each.
Results chosen_on_device(const ChosenCase& c, const std::vector<std::int64_t>& cuts) {
  DeviceCase device(c, Path::kHopper);
  const auto scores = upload(c.scores, device.stream);
  const auto window_weight = upload(c.window_weight, device.stream);
  device.out.upload(c.window.out.data(), device.out.size(), device.stream);
  device.lse.upload(c.window.lse.data(), device.lse.size(), device.stream);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const RowRange rows{cuts[i], cuts[i + 1]};
    const HostPlan plan(c, rows, device.stream);
    hopper::attend_chosen(device.shape, device.geometry(), device.blocks.view(), device.queries.data(), rows,
                          plan.view(c.problem.group()), nullptr, scores.data(), window_weight.data(), device.out.data(),
                          device.stream);
    device.stream.wait();
  }
  return device.results(c);
}

TEST(HopperAttendChosen, random_problems_match_the_cpu) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(5, [](const AttentionProblem& problem, std::mt19937_64& random) {
    const ChosenCase c(problem, policy_of(problem, random), random());
    SCOPED_TRACE(words(problem, c.policy));
    expect_close(problem, chosen_on_device(c, {0, problem.tokens}), c.on_cpu());
  });
}

TEST(HopperAttendChosen, bits_do_not_depend_on_the_range) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  for_shapes(6, [](const AttentionProblem& problem, std::mt19937_64& random) {
    const ChosenCase c(problem, policy_of(problem, random), random());
    SCOPED_TRACE(words(problem, c.policy));
    const Results whole = chosen_on_device(c, {0, problem.tokens});
    const Results parts = chosen_on_device(c, random_cuts(problem.tokens, random));
    EXPECT_EQ(first_differences(parts.out, whole.out, problem.heads, problem.head_dim, 0.0), "");
    EXPECT_TRUE(same_bits(parts.out, whole.out));
  });
}

TEST(HopperAttendChosen, rows_without_a_chosen_chunk_and_rows_out_of_range_stay_as_they_are) {
  RINGMARK_SKIP_WITHOUT_GPU_FOR(Path::kHopper);
  const AttentionProblem problem{.tokens = 600, .heads = 8, .kv_heads = 2, .head_dim = 128, .cu_seqlens = {}};
  const ChosenCase c(problem, {.window = 100, .topk = 3}, 7);
  const Results results = chosen_on_device(c, {37, 555});
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(results.out.size()); ++i) {
    const std::int64_t row = i / 8 / 128;
    const bool untouched = row < 37 || row >= 555 || c.selection.chosen(row, i / 128 % 8 / 4).empty();
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(std::memcmp(&results.out[at], &c.window.out[at], sizeof(float)) == 0, untouched) << "row " << row;
  }
}

}  // namespace
}  // namespace ringmark::kernels::cuda
