// The command that starts one run of a point on its nodes.
#pragma once

#include <string>
#include <vector>

#include "cluster/scaling/study.h"

namespace ringmark::cluster {

struct Launch {
  enum class By { kMpirun, kSrun };
  By by = By::kMpirun;
  std::vector<std::string> hosts;    // all that there are; mpirun: empty for this machine alone
  std::string hostfile;              // mpirun: instead of hosts
  std::vector<std::string> options;  // of the launcher, between ours and the program
};

// `hosts`: those of the launch that take part, as many as the point has nodes; empty when the launcher chooses.
struct PointLaunch {
  std::vector<std::string> hosts;
  std::vector<std::string> command;
};

// What `launch` does for a point: the program is this one's own file. Throws Error(kEnvironment) when the job has too
// few hosts for the point, or too few that Slurm calls usable.
PointLaunch launch_point(const Launch& launch, const Study& study, const StudyPoint& point);

// Arguments of the program for one run of the point that writes into `folder`.
std::vector<std::string> run_arguments(const Study& study, const StudyPoint& point, const std::string& folder,
                                       bool traced);

}  // namespace ringmark::cluster
