// Why a launch did not end well, in one line: srun hides exit codes, mpirun names only who died first, and a rank that
// was killed says nothing. So all of them are asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/scaling/launched_program.h"
#include "cluster/scaling/point_result.h"

namespace ringmark::cluster {

// `folder`: of the launch, with log/error.RANK.json, log/signal.RANK.json and stderr.txt. `hosts`: those of the launch,
// of which Slurm is asked; empty: nobody is.
PointFailure failure_cause(const ProgramEnd& end, const std::string& folder, const std::vector<std::string>& hosts,
                           double limit_seconds);

// Lines of a launcher's stderr that say what happened: how a process died, or what Slurm or a rank says.
std::vector<std::string> telling_lines(const std::string& text);

// The first line that says that a process was killed, crashed or lost its node; nothing when none does.
std::optional<std::string> line_of_death(const std::vector<std::string>& lines);

}  // namespace ringmark::cluster
