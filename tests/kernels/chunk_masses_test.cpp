#include "kernels/chunk_masses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/cpu/isa.h"
#include "kernels/positions/alibi.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/random_selection.h"

namespace ringmark::kernels {
namespace {

struct MassCase : AttentionCase {
  MassCase(const AttentionProblem& p, const AttentionPolicy& wanted, std::uint64_t seed)
      : AttentionCase(p, wanted, seed), selection(p.tokens, wanted.choosers(p), wanted.topk) {
    for (std::int64_t row = 0; row < p.tokens; ++row) {
      for (std::int64_t chooser = 0; chooser < selection.choosers; ++chooser) {
        choose_at_random(grid, random, 2, row, chooser, selection,
                         [&] { return static_cast<std::size_t>(policy.topk); });
      }
    }
    for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) chunks.push_back(chunk);
  }

  // Masses of all rows, by whichever of the chunks are listed.
  std::vector<KeyMass> masses(std::span<const ChunkId> listed) const {
    std::vector<KeyMass> all(static_cast<std::size_t>(problem.tokens * problem.heads));
    add_chunk_masses(problem, grid, queries.view(), tokens, selection, listed, blocks.table(), all, 2);
    return all;
  }

  double logit(TokenId i, TokenId j, std::int64_t head) const {
    double z = double{problem.scale} * dot(queries.row(i.value(), head), keys.row(j.value(), head / problem.group()));
    if (problem.logit_cap > 0.0f) z = problem.logit_cap * std::tanh(z / double{problem.logit_cap});
    if (problem.alibi) {
      const auto slopes = alibi_slopes(problem.heads);
      z -= double{slopes[static_cast<std::size_t>(head)]} * static_cast<double>(j < i ? i - j : 0);
    }
    return z;
  }

  // ln of the sums of a KeyMass, by definition.
  struct Exact {
    double all = -HUGE_VAL, kept = -HUGE_VAL;
  };
  Exact exact(TokenId i, std::int64_t head) const {
    const auto window = window_keys(grid, i);
    std::set<TokenId> attended(window.begin(), window.end());
    for (const std::int32_t chunk : selection.chosen(i.value(), head * selection.choosers / problem.heads)) {
      const Range<TokenId> slots = grid.keys_of(ChunkId(chunk));
      for (TokenId j = slots.begin; j < slots.end; ++j) attended.insert(j);
    }
    double all = 0.0, kept = 0.0;
    for (TokenId j = grid.document_of(i).tokens.begin; j <= i; ++j) {
      if (!grid.is_key(j)) continue;
      all += std::exp(logit(i, j, head));
      if (attended.contains(j)) kept += std::exp(logit(i, j, head));
    }
    return {std::log(all), std::log(kept)};
  }

  Selection selection;
  std::vector<ChunkId> chunks;
};

bool same_bits(const std::vector<KeyMass>& a, const std::vector<KeyMass>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const KeyMass& x, const KeyMass& y) {
    const auto same = [](const LogSum& s, const LogSum& t) {
      return s.place == t.place && s.high == t.high && s.low == t.low;
    };
    return same(x.all, y.all) && same(x.kept, y.kept);
  });
}

void expect_near(float got, double want, const std::string& what) {
  if (want == -HUGE_VAL) {
    EXPECT_EQ(got, kMinusInfinity) << what;
  } else {
    EXPECT_NEAR(got, want, 2e-5) << what;
  }
}

void check_random_cases(int count, float logit_cap, bool alibi) {
  std::mt19937_64 random(17);
  for (int n = 0; n < count; ++n) {
    AttentionProblem problem = random_problem(random);
    problem.logit_cap = logit_cap;
    problem.alibi = alibi;
    const MassCase c(problem, random_chooser(random, problem), random());
    const std::vector<KeyMass> got = c.masses(c.chunks);
    const std::int64_t step = std::max<std::int64_t>(1, problem.tokens * problem.heads / 64);
    for (std::int64_t at = 0; at < problem.tokens * problem.heads; at += step) {
      const auto want = c.exact(TokenId(at / problem.heads), at % problem.heads);
      const std::string what = "case " + std::to_string(n) + " pair " + std::to_string(at);
      expect_near(got[static_cast<std::size_t>(at)].all.value(), want.all, what);
      expect_near(got[static_cast<std::size_t>(at)].kept.value(), want.kept, what);
    }
  }
}

TEST(ChunkMasses, random_layers_match_fp64) { check_random_cases(60, 0.0f, false); }
TEST(ChunkMasses, of_capped_logits) { check_random_cases(15, 1.5f, false); }
TEST(ChunkMasses, of_logits_with_alibi) { check_random_cases(15, 0.0f, true); }

AttentionProblem usual_problem() {
  AttentionProblem problem;
  problem.tokens = 300;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 80;
  problem.chunk_size = 16;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 131, 300};
  return problem;
}

constexpr AttentionPolicy kUsualPolicy = {.window = 20, .topk = 3, .sinks = 5};

TEST(ChunkMasses, bits_depend_on_no_order_and_on_no_instruction_set) {
  const MassCase c(usual_problem(), kUsualPolicy, 5);
  const std::vector<KeyMass> all = c.masses(c.chunks);
  std::vector<ChunkId> odd, even;
  for (const ChunkId chunk : c.chunks) (chunk.value() % 2 == 0 ? even : odd).push_back(chunk);
  std::vector<KeyMass> sum = c.masses(odd);
  const std::vector<KeyMass> rest = c.masses(even);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i].add(rest[i]);
  EXPECT_TRUE(same_bits(sum, all));

  const cpu::Isa before = cpu::active_isa();
  cpu::force_isa(cpu::Isa::kAvx2);
  EXPECT_TRUE(same_bits(c.masses(c.chunks), all));
  cpu::force_isa(before);
}

TEST(ChunkMasses, a_row_does_not_depend_on_its_neighbours) {
  const MassCase c(usual_problem(), kUsualPolicy, 6);
  const std::vector<KeyMass> all = c.masses(c.chunks);
  for (const std::int64_t row : {0, 37, 130, 131, 299}) {
    Selection chosen(1, c.selection.choosers, c.selection.topk);
    for (std::int64_t chooser = 0; chooser < chosen.choosers; ++chooser) {
      std::ranges::copy(c.selection.slots(row, chooser), chosen.slots(0, chooser).begin());
    }
    std::vector<KeyMass> alone(static_cast<std::size_t>(c.problem.heads));
    add_chunk_masses(c.problem, c.grid, c.queries.view().slice(row, row + 1), std::array{TokenId(row)}, chosen,
                     c.chunks, c.blocks.table(), alone, 1);
    const auto first = all.begin() + row * c.problem.heads;
    EXPECT_TRUE(same_bits(alone, {first, first + c.problem.heads})) << row;
  }
}

// Keys whose e^z is a small whole number: query 1, key ln(mass), scale 1.
struct ByHand {
  ByHand(const std::vector<float>& masses, std::int64_t chunk_size, bool slots, std::vector<std::int64_t> documents,
         const AttentionPolicy& policy)
      : shape(problem_of(std::ssize(masses), chunk_size, slots, std::move(documents))),
        grid(shape, policy),
        blocks(shape, grid, logs(masses), masses),
        query(shape.dtype, 1, 1, 1, {1.0f}) {
    for (ChunkId chunk(0); chunk < ChunkId(grid.chunk_count()); ++chunk) chunks.push_back(chunk);
  }

  static AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, bool slots,
                                     std::vector<std::int64_t> documents) {
    AttentionProblem problem;
    problem.tokens = tokens;
    problem.head_dim = 1;
    problem.chunk_size = chunk_size;
    problem.dtype = DType::kFloat32;
    problem.scale = 1.0f;
    problem.landmark_slots = slots;
    problem.cu_seqlens = std::move(documents);
    return problem;
  }
  static std::vector<float> logs(const std::vector<float>& masses) {
    std::vector<float> keys;
    for (const float mass : masses) keys.push_back(std::log(mass));
    return keys;
  }

  // e^(ln all), e^(ln kept) of a query that chose these chunks.
  std::pair<double, double> masses_of(TokenId token, const std::vector<std::int32_t>& chosen) const {
    Selection selection(1, 1, std::ssize(chosen));
    std::ranges::copy(chosen, selection.chunks.begin());
    std::vector<KeyMass> mass(1);
    add_chunk_masses(shape, grid, query.view(), std::array{token}, selection, chunks, blocks.table(), mass, 1);
    return {std::exp(double{mass[0].all.value()}), std::exp(double{mass[0].kept.value()})};
  }

  AttentionProblem shape;
  partition::SequenceGrid grid;
  StoredBlocks blocks;
  StoredTensor query;
  std::vector<ChunkId> chunks;
};

// Chunks {1, 2}, {3, 4}, {5}: the last query sees 15. Its window is {5}; chunk 1 adds 7.
TEST(ChunkMasses, by_hand_window_and_a_choice) {
  const ByHand layer({1, 2, 3, 4, 5}, 2, false, {}, {.window = 0, .topk = 1});
  const auto [all, kept] = layer.masses_of(TokenId(4), {1});
  EXPECT_NEAR(all, 15.0, 1e-4);
  EXPECT_NEAR(kept, 5.0 + 7.0, 1e-4);
}

// Chunks {1, 2, slot}, {3, 4, slot}, {5}: slots count nowhere. The sink {1} is attended, and chunk 0 adds only its {2}.
TEST(ChunkMasses, by_hand_landmark_slots_and_a_sink) {
  const ByHand layer({1, 2, 90, 3, 4, 90, 5}, 3, true, {}, {.window = 0, .topk = 1, .sinks = 1});
  EXPECT_NEAR(layer.masses_of(TokenId(6), {0}).first, 15.0, 1e-4);
  EXPECT_NEAR(layer.masses_of(TokenId(6), {0}).second, 1.0 + 2.0 + 5.0, 1e-4);
  EXPECT_NEAR(layer.masses_of(TokenId(6), {}).second, 1.0 + 5.0, 1e-4);
}

// The second document begins at token 3: its second query sees 4 and 5, and its own chunk holds both.
TEST(ChunkMasses, by_hand_packed_documents) {
  const ByHand layer({1, 2, 3, 4, 5, 6}, 2, false, {0, 3, 6}, {.window = 0, .topk = 1});
  const auto [all, kept] = layer.masses_of(TokenId(4), {});
  EXPECT_NEAR(all, 9.0, 1e-4);
  EXPECT_NEAR(kept, 9.0, 1e-4);
  EXPECT_NEAR(layer.masses_of(TokenId(5), {}).second, 6.0, 1e-4);  // its chunk alone
}

TEST(LogSumShare, is_exact_for_itself_and_holds_far_apart) {
  LogSum one, both;
  one.add(3.0f);
  both.add(one);
  EXPECT_EQ(one.share_of(both), 1.0);
  both.add(3.0f);
  EXPECT_EQ(one.share_of(both), 0.5);
  LogSum small;
  small.add(-60.0f);
  EXPECT_NEAR(small.share_of(one) / std::exp(-63.0), 1.0, 1e-5);
  LogSum tiny;
  tiny.add(-1e9f);
  EXPECT_EQ(tiny.share_of(one), 0.0);
}

}  // namespace
}  // namespace ringmark::kernels
