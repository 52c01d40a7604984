#include "runtime/dense/ring_route.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringmark::runtime::dense {

RingRoute::RingRoute(const partition::SequenceGrid& grid, const Team& team) {
  std::vector<Order> backward;
  for (int owner = 0; owner < team.size(); ++owner) {
    order_.push_back(order_of(grid, team, owner, 1));
    backward.push_back(order_of(grid, team, owner, -1));
  }
  if (hops(backward) >= hops(order_)) return;
  direction_ = -1;
  order_ = std::move(backward);
}

RingRoute::Order RingRoute::order_of(const partition::SequenceGrid& grid, const Team& team, int owner, int direction) {
  std::vector<std::pair<int, ChunkId>> by_reach;  // minus the last hop at which some place needs the chunk
  std::vector<std::int64_t> travelling(static_cast<std::size_t>(team.size()), 0);
  for (const ChunkId chunk : team.chunks_at(owner)) {
    int reach = team.size() - 1;
    while (reach > 0 && !needs_keys(grid, team, team.place_after(owner, direction * reach), chunk)) --reach;
    by_reach.emplace_back(-reach, chunk);
    for (int hop = 0; hop <= reach; ++hop) ++travelling[static_cast<std::size_t>(hop)];
  }
  std::sort(by_reach.begin(), by_reach.end());
  Order order{{}, std::move(travelling)};
  for (const auto& [reach, chunk] : by_reach) order.chunks.push_back(chunk);
  return order;
}

std::int64_t RingRoute::hops(const std::vector<Order>& order) {
  std::int64_t sum = 0;
  for (const Order& of : order) sum += std::accumulate(of.travelling.begin() + 1, of.travelling.end(), std::int64_t{0});
  return sum;
}

}  // namespace ringmark::runtime::dense
