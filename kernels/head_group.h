// Which query heads share a kv head. A rank may hold only some of a group's query heads.
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

inline std::int64_t largest_group(std::span<const HeadGroup> groups) {
  std::int64_t most = 0;
  for (const HeadGroup& group : groups) most = std::max(most, group.heads);
  return most;
}

}  // namespace ringmark::kernels
