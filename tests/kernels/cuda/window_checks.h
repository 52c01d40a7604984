// What every kernel of the window must hold on shapes that tensor cores need not take. `attend(case, device, rows)`
// runs the kernel on a range of rows.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kernels/attend_window.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/cuda/device_case.h"

namespace ringmark::kernels::cuda {

inline std::string name_of_case(const AttentionProblem& problem) {
  return "tokens " + std::to_string(problem.tokens) + " heads " + std::to_string(problem.heads) + "/" +
         std::to_string(problem.kv_heads) + " head_dim " + std::to_string(problem.head_dim) + " chunk_size " +
         std::to_string(problem.chunk_size) + " " + std::string(name_of(problem.dtype));
}

template <class Attend>
void check_window_against_cpu(double bound, Attend&& attend) {
  std::mt19937_64 random(51);
  for (int trial = 0; trial < 120; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, random_policy(random, problem), random());
    const DeviceCase device(c, Path::kSimt);
    attend(c, device, device.all());
    const Results got = device.results(c);
    Results want(problem, problem.tokens);
    kernels::attend_window(problem, c.grid, c.queries.view(), c.tokens, c.all(), c.blocks.table(), want.out_view(),
                           want.lse_view(), 4);
    ASSERT_EQ(first_differences(got.lse, want.lse, problem.heads, 1, bound), "") << name_of_case(problem);
    ASSERT_EQ(first_differences(got.out, want.out, problem.heads, problem.head_dim, bound), "")
        << name_of_case(problem);
  }
}

template <class Attend>
void check_window_rows_alone(Attend&& attend) {
  std::mt19937_64 random(52);
  for (int trial = 0; trial < 30; ++trial) {
    const AttentionProblem problem = random_problem(random);
    const AttentionCase c(problem, random_policy(random, problem), random());
    const DeviceCase whole(c, Path::kSimt), parts(c, Path::kSimt);
    attend(c, whole, whole.all());
    for (std::int64_t begin = 0; begin < problem.tokens;) {
      const auto end = std::uniform_int_distribution<std::int64_t>(begin + 1, problem.tokens)(random);
      attend(c, parts, {begin, end});
      begin = end;
    }
    const Results want = whole.results(c), got = parts.results(c);
    ASSERT_TRUE(same_bits(got.out, want.out) && same_bits(got.lse, want.lse)) << name_of_case(problem);
  }
}

}  // namespace ringmark::kernels::cuda
