// Which query heads share a kv head, and which of those a list of chosen chunks. A rank may hold only some of a group's
// query heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.h"

namespace ringmark::kernels {

struct HeadGroup {
  std::int64_t kv_head = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 0;
};

// All heads of a layer.
inline std::vector<HeadGroup> head_groups(const AttentionProblem& problem) {
  std::vector<HeadGroup> groups;
  for (std::int64_t g = 0; g < problem.kv_heads; ++g) groups.push_back({g, g * problem.group(), problem.group()});
  return groups;
}

// Query heads that share a kv head and a list of chosen chunks.
struct ChoosingHeads {
  HeadGroup heads;
  std::int64_t chooser = 0;
};

// All heads of a layer, ascending, where runs of heads / choosers heads agree on their chunks: in groups as large as kv
// heads and choosers allow.
inline std::vector<ChoosingHeads> choosing_heads(const AttentionProblem& problem, std::int64_t choosers) {
  const std::int64_t agreeing = problem.heads / choosers, together = std::min(agreeing, problem.group());
  std::vector<ChoosingHeads> all;
  for (std::int64_t head = 0; head < problem.heads; head += together) {
    all.push_back({{head / problem.group(), head, together}, head / agreeing});
  }
  return all;
}

inline std::int64_t largest_group(std::span<const HeadGroup> groups) {
  std::int64_t most = 0;
  for (const HeadGroup& group : groups) most = std::max(most, group.heads);
  return most;
}

}  // namespace ringmark::kernels
