// Ring attention: the shards of keys and values travel round the ring. While the shard that is here is attended to, it
// already leaves for the next place, and the next shard comes in. Two buffers whatever the size of the ring; the
// softmax of every row stays open, so nothing is merged and the error does not grow with the ring.
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "comm/current_step.h"
#include "runtime/dense/ring_route.h"
#include "runtime/dense/team_work.h"

namespace ringmark::runtime::dense {
namespace {

class Ring {
 public:
  explicit Ring(const TeamWork& work) : work_(work), team_(work.team), route_(work.queries.grid, work.team) {
    if (team_.size() == 1) return;
    own_.resize(bytes(team_.place, 1));
    pack_chunks(work_, route_.order(team_.place).first(count(team_.place, 1)), own_.data());
    std::size_t most = 0;
    for (int hop = 1; hop < team_.size(); ++hop) most = std::max(most, bytes(owner_at(hop), hop));
    for (int hop = 1; hop <= std::min(2, team_.size() - 1); ++hop) arriving(hop).resize(most);
  }

  void attend_all() {
    work_.progress.begin("attend", team_.size() * work_.rows());
    for (int hop = 0; hop < team_.size(); ++hop) {
      const comm::EnterStep entered("ring hop", hop);
      const bool goes_on = hop + 1 < team_.size();
      Exchange exchange(work_, "ring of keys");
      if (goes_on) start_hop(exchange, hop + 1);
      attend(work_, attended_at(hop));
      if (goes_on) finish_hop(exchange, hop + 1);
      work_.progress.advance((hop + 1) * work_.rows());
    }
    work_.progress.end();
    kernels::close_softmax(work_.softmax);
  }

 private:
  // Whose shard is here after so many hops.
  int owner_at(int hop) const { return team_.place_after(team_.place, -route_.direction() * hop); }
  std::size_t count(int owner, int hop) const { return static_cast<std::size_t>(route_.travelling(owner, hop)); }
  std::size_t bytes(int owner, int hop) const {
    return count(owner, hop) * static_cast<std::size_t>(work_.chunk_bytes());
  }
  std::vector<std::byte>& arriving(int hop) { return arriving_[static_cast<std::size_t>(hop % 2)]; }

  void start_hop(Exchange& exchange, int hop) {
    const int left = owner_at(hop - 1);
    const std::vector<std::byte>& here = hop == 1 ? own_ : arriving(hop - 1);
    exchange.send(team_.place_after(team_.place, route_.direction()), comm::ConstBytes(here).first(bytes(left, hop)));
    exchange.receive(team_.place_after(team_.place, -route_.direction()),
                     comm::Bytes(arriving(hop)).first(bytes(owner_at(hop), hop)));
    exchange.start();
  }

  void finish_hop(Exchange& exchange, int hop) {
    exchange.wait();
    const int owner = owner_at(hop);
    list_chunks(work_, route_.order(owner).first(count(owner, hop)), arriving(hop).data());
    work_.received.keys += static_cast<std::int64_t>(bytes(owner, hop));
  }

  std::vector<ChunkId> attended_at(int hop) const {
    if (hop == 0) return team_.own_chunks();
    return needed_keys(work_.queries.grid, team_, team_.place, owner_at(hop));
  }

  const TeamWork& work_;
  const Team& team_;
  RingRoute route_;
  std::vector<std::byte> own_;  // what leaves, in the order of the route
  std::array<std::vector<std::byte>, 2> arriving_;
};

}  // namespace

void attend_by_ring(const TeamWork& work) { Ring(work).attend_all(); }

}  // namespace ringmark::runtime::dense
