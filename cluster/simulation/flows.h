// The reads of all schedules as flows between endpoints of the network: a rank's port inside its node, or one of a
// node's network cards.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cluster/simulation/schedule.h"
#include "cluster/simulation/topology.h"

namespace ringmark::cluster {

// Endpoints are numbered: ports of ranks first, then the rails of nodes.
class Endpoints {
 public:
  explicit Endpoints(const Topology& topology) : topology_(topology) {}
  int count() const { return topology_.ranks() + topology_.nodes * topology_.rails; }
  bool is_port(int endpoint) const { return endpoint < topology_.ranks(); }
  // Of a rank when it and its peer exchange bytes.
  int of(int rank, int peer) const {
    const int node = topology_.node_of(rank);
    if (node == topology_.node_of(peer)) return rank;
    return topology_.ranks() + node * topology_.rails + topology_.rail_of(rank);
  }
  const LinkRate& link(int endpoint) const { return is_port(endpoint) ? topology_.inside : topology_.outside; }

 private:
  const Topology& topology_;
};

struct Flow {
  int from = 0;                 // endpoint
  int to = 0;                   // endpoint of the reader
  std::int64_t bytes = 0;       // that are moved
  double link_bytes = 0.0;      // for which the links of both ends are held, at the rate of streams: see link_bytes()
  double seconds_at_least = 0;  // by what the busiest owner has to serve; only where flows are aggregated
};

// Bytes for which a link that runs at `streamed` is held by reads that move `bytes`: scattered blocks move at a lower
// rate, and each read takes its time beside its bytes.
double link_bytes(const LinkRate& link, std::int64_t bytes, std::int64_t reads, bool streamed);

// Flows of one wave of a rank, one an owner's endpoint, in the order of its reads.
std::vector<Flow> flows_of(const Topology& topology, int rank, const Step& step, const SimulatedWave& wave);

// What the endpoints of owners serve in one round of one step, over all ranks: link seconds by endpoint.
class ServedSeconds {
 public:
  ServedSeconds(const Topology& topology, const std::vector<RankSchedule>& schedules);
  double at(std::size_t step, std::size_t wave, int endpoint) const {
    return seconds_[step][wave][static_cast<std::size_t>(endpoint)];
  }

 private:
  std::vector<std::vector<std::vector<double>>> seconds_;  // by step, wave, endpoint
};

// One flow an endpoint of the reader, from wherever (`from` is -1).
std::vector<Flow> aggregate(const Topology& topology, const std::vector<Flow>& flows, const ServedSeconds& served,
                            std::size_t step, std::size_t wave);

std::int64_t count_flows(const Topology& topology, const std::vector<RankSchedule>& schedules);

}  // namespace ringmark::cluster
