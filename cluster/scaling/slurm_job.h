// The Slurm job that a study runs in, seen from inside: what its commands say.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ringmark::cluster {

// Of this process; nothing outside of Slurm.
std::optional<std::string> slurm_job();

// Names of the hosts of the job, in Slurm's order.
std::vector<std::string> slurm_hosts();

struct SlurmNode {
  std::string name;
  std::string state;   // as sinfo writes it, in short: idle, alloc, down*, drain
  std::string reason;  // "none" when nobody gave one
  bool usable() const;
};

// The state of `hosts` as Slurm knows it; nothing where sinfo does not answer.
std::vector<SlurmNode> slurm_nodes(const std::vector<std::string>& hosts);

// "FAILED: NodeFail" and the like: state and reason of a job that may have ended; empty when Slurm has forgotten it.
std::string slurm_end_of(const std::string& job);

}  // namespace ringmark::cluster
