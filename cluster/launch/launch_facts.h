// What a rank can know of its launch before MPI is there: launcher, ranks, hosts, processors, interfaces, environment.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/launch/network_interfaces.h"

namespace ringmark::cluster {

// What the job will use of it. Settings of what it does not use are nobody's business.
struct LaunchUse {
  bool gpus = false;  // --backend cuda
  bool ucx = false;   // --transport ucx
};

struct LaunchFacts {
  LaunchUse use;
  std::map<std::string, std::string> environment;
  int ranks = 1;
  int host_ranks = 1;  // on this host
  int cpus = 1;        // of this host
  int bound_cpus = 1;  // that this process may use
  int given_cpus = 1;  // that it might use before OpenMP bound it, which happens before main
  bool rdma = false;   // an InfiniBand or RoCE device is there
  std::vector<NetworkInterface> interfaces;

  bool several_hosts() const { return ranks > host_ranks; }
  bool oversubscribed() const { return host_ranks > cpus; }
  // Empty when unset.
  std::string value(const std::string& name) const;
};

LaunchFacts find_launch_facts(const LaunchUse& use);

// Ranks of the job and of this host by the launcher's variables: those of mpirun, else those of the Slurm step. 1 and 1
// without a launcher. Slurm's tasks a node ("4(x2),3") are counted by their largest.
struct LaunchedRanks {
  int all = 1;
  int on_host = 1;
};
LaunchedRanks launched_ranks(const std::map<std::string, std::string>& environment);

}  // namespace ringmark::cluster
