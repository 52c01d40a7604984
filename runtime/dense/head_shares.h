// Which heads each rank of a Ulysses group attends for: the query heads as evenly as they divide, and the kv heads that
// these read. A kv head whose query heads are cut apart goes to every rank that has some of them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/problem.h"
#include "kernels/head_group.h"

namespace ringmark::runtime::dense {

struct HeadShare {
  Range<std::int64_t> heads;
  Range<std::int64_t> kv_heads;                 // empty when there are no heads
  std::vector<kernels::HeadGroup> groups = {};  // numbered within the share
};

// Share `index` of `count`. Shares may be empty: there are no more than query heads.
inline HeadShare head_share(const AttentionProblem& problem, int index, int count) {
  HeadShare share{{problem.heads * index / count, problem.heads * (index + 1) / count}, {0, 0}};
  if (share.heads.empty()) return share;
  const std::int64_t group = problem.group();
  share.kv_heads = {share.heads.begin / group, (share.heads.end - 1) / group + 1};
  for (std::int64_t g = share.kv_heads.begin; g < share.kv_heads.end; ++g) {
    const Range<std::int64_t> heads = intersect(share.heads, {g * group, (g + 1) * group});
    share.groups.push_back({g - share.kv_heads.begin, heads.begin - share.heads.begin, heads.size()});
  }
  return share;
}

// Ranks of a Ulysses group: the largest divisor of `ranks` that also divides the kv heads, so that none is held twice.
inline int usual_ulysses_ranks(int ranks, std::int64_t kv_heads) {
  for (int group = ranks; group > 1; --group) {
    if (ranks % group == 0 && kv_heads % group == 0) return group;
  }
  return 1;
}

}  // namespace ringmark::runtime::dense
