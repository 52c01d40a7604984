#include "cluster/telemetry/wait_graph.h"

#include <algorithm>
#include <set>

namespace ringmark::cluster {
namespace {

// All ranks that `from` waits for, over any number of edges; itself only in a circle.
std::set<int> reach(const std::map<int, RankWait>& waits, int from) {
  std::set<int> reached;
  std::vector<int> left = {from};
  while (!left.empty()) {
    const auto wait = waits.find(left.back());
    left.pop_back();
    if (wait == waits.end()) continue;
    for (const int peer : wait->second.peers) {
      if (reached.insert(peer).second) left.push_back(peer);
    }
  }
  return reached;
}

}  // namespace

WaitVerdict judge_waits(const std::map<int, RankWait>& waits) {
  WaitVerdict verdict;
  std::map<int, std::vector<int>> waiting_for;  // by root
  std::set<int> circle;
  for (const auto& [rank, wait] : waits) {
    if (wait.peers.empty()) verdict.not_told.push_back(rank);
    const std::set<int> reached = reach(waits, rank);
    if (reached.contains(rank)) circle.insert(rank);
    for (const int root : reached) {
      // Who waits inside MPI is no root: it is not known for whom it waits.
      if (!waits.contains(root)) waiting_for[root].push_back(rank);
    }
  }
  std::size_t most = 0;
  for (const auto& [root, waiting] : waiting_for) most = std::max(most, waiting.size());
  std::set<int> waiting_ranks;
  for (const auto& [root, waiting] : waiting_for) {
    if (waiting.size() < most) continue;
    verdict.roots.push_back(root);
    waiting_ranks.insert(waiting.begin(), waiting.end());
  }
  if (verdict.roots.empty() && !circle.empty()) {
    verdict.is_circle = true;
    verdict.roots.assign(circle.begin(), circle.end());
    waiting_ranks = circle;
  }
  verdict.waiting.assign(waiting_ranks.begin(), waiting_ranks.end());
  return verdict;
}

}  // namespace ringmark::cluster
