// What a simulated cluster is made of: nodes of ranks, what lies between the ranks of a node, and the network cards by
// which nodes reach each other.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "cluster/planning/machine_profile.h"

namespace ringmark::cluster {

struct Topology {
  int nodes = 1;
  int ranks_per_node = 1;
  LinkRate inside;                // of a rank's port; ports of a node meet in a switch that never blocks
  LinkRate outside;               // of one rail
  int rails = 1;                  // network cards of a node
  double oversubscription = 1.0;  // bytes that the nodes of a leaf switch can send over those that leave the leaf
  int leaf_nodes = 32;            // nodes of a leaf switch; one leaf has nothing to leave for
  int shared_cores = 0;           // above 0: all nodes are hosts of one machine with so many cores (network namespaces)
  int threads = 1;                // of a rank, on shared cores

  int ranks() const { return nodes * ranks_per_node; }
  int node_of(int rank) const { return rank / ranks_per_node; }
  // Ranks of a node share its rails evenly, neighbours first.
  int rail_of(int rank) const { return rank % ranks_per_node * rails / ranks_per_node; }
  bool has_leaves() const { return oversubscription > 1.0 && nodes > leaf_nodes; }
};

// Networks between nodes by name.
struct Fabric {
  std::string_view name;
  double rail;       // bytes a second of a rail, one direction
  double latency;    // seconds of a message
  double streams;    // of the rail that streams reach
  double blocks;     // of the rail that scattered blocks reach
  bool rail_a_rank;  // a network card for each rank; else one for the node
};

// Line rates: NDR InfiniBand 400 Gb/s and Ethernet 100 Gb/s. The shares that are reached are assumed, not measured.
inline constexpr std::array kFabrics = {
    Fabric{"infiniband", 50e9, 5e-6, 0.9, 0.8, true},
    Fabric{"ethernet", 12.5e9, 20e-6, 0.9, 0.7, false},
};

// The link of a fabric's rail, with where its numbers come from.
LinkRate link_of(const Fabric& fabric);

}  // namespace ringmark::cluster
