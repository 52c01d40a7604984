// How chunks travel round a ring: each only as far as the last place that needs it, in the direction in which fewer
// bytes move. Contiguous shards stop before the first place; of zigzag shards the early half goes all the way round and
// the late half, in the better direction, no further than its readers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/dense/team.h"

namespace ringmark::runtime::dense {

class RingRoute {
 public:
  // The same on every rank.
  RingRoute(const partition::SequenceGrid& grid, const Team& team);

  // +1: from place p to p + 1, -1: to p - 1.
  int direction() const { return direction_; }
  // All chunks of a place in the order in which they stand in a message: those that travel furthest first, so that what
  // goes on is the front of what came.
  std::span<const ChunkId> order(int owner) const { return order_[static_cast<std::size_t>(owner)].chunks; }
  // How many of them arrive `hop` > 0 steps from their owner.
  std::int64_t travelling(int owner, int hop) const {
    return order_[static_cast<std::size_t>(owner)].travelling[static_cast<std::size_t>(hop)];
  }

 private:
  struct Order {
    std::vector<ChunkId> chunks;
    std::vector<std::int64_t> travelling;  // by hop
  };
  static Order order_of(const partition::SequenceGrid& grid, const Team& team, int owner, int direction);
  static std::int64_t hops(const std::vector<Order>& order);

  int direction_ = 1;
  std::vector<Order> order_;  // by owner
};

}  // namespace ringmark::runtime::dense
