// Results of an attention kernel against fp64, and against themselves in other ranges of rows.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "kernels/cpu/isa.h"
#include "tests/kernels/attention_case.h"

namespace ringmark::kernels {

// Random rows and heads. exact(row, head) is what is expected there; nothing: anything.
template <class Exact>
void check_samples(const AttentionCase& c, const Results& results, int samples, std::mt19937_64& random, double bound,
                   const Exact& exact) {
  const AttentionProblem& problem = c.problem;
  for (int sample = 0; sample < samples; ++sample) {
    const auto row = std::uniform_int_distribution<std::int64_t>(0, problem.tokens - 1)(random);
    const auto head = std::uniform_int_distribution<std::int64_t>(0, problem.heads - 1)(random);
    const std::optional<ExactRow> expected = exact(row, head);
    if (!expected) continue;
    const std::int64_t at = row * problem.heads + head;
    ASSERT_NEAR(results.lse[static_cast<std::size_t>(at)], expected->lse, bound) << "row " << row << " head " << head;
    for (std::int64_t k = 0; k < problem.head_dim; ++k) {
      ASSERT_NEAR(results.out[static_cast<std::size_t>(at * problem.head_dim + k)],
                  expected->out[static_cast<std::size_t>(k)], bound)
          << "row " << row << " head " << head << " component " << k;
    }
  }
}

// attend(results, rows) range by random range, into what was there before, by the kernels of the lowest instruction set
// or of this machine: the bits of all rows at once.
template <class Attend>
void check_ranges(const AttentionProblem& problem, const Results& before, const Results& whole, bool lowest,
                  std::mt19937_64& random, const Attend& attend) {
  const cpu::Isa native = cpu::active_isa();
  Results parts = before;
  if (lowest) cpu::force_isa(cpu::Isa::kAvx2);
  for (std::int64_t begin = 0; begin < problem.tokens;) {
    const auto end = std::uniform_int_distribution<std::int64_t>(begin + 1, problem.tokens)(random);
    attend(parts, RowRange{begin, end});
    begin = end;
  }
  cpu::force_isa(native);
  ASSERT_TRUE(same_bits(whole.out, parts.out));
  ASSERT_TRUE(same_bits(whole.lse, parts.lse));
}

// Of a case with the results of its windows and chosen chunks: attending the rows before `end` leaves those without a
// chosen chunk, and all others, as they are.
template <class ChosenCase>
void check_untouched_rows(const ChosenCase& c, std::int64_t end) {
  Results results = c.window;
  c.attend(results, {0, end}, 1);
  for (std::int64_t row = 0; row < c.problem.tokens; ++row) {
    const auto at = static_cast<std::size_t>(row * c.problem.heads);
    const std::size_t first = at * static_cast<std::size_t>(c.problem.head_dim);
    const bool untouched = row >= end || c.chosen(row, 0).empty();
    EXPECT_EQ(results.lse[at] == c.window.lse[at], untouched) << "row " << row;
    EXPECT_EQ(results.out[first] == c.window.out[first], untouched) << "row " << row;
  }
}

}  // namespace ringmark::kernels
