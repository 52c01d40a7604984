// Runs one point of a study: warm-up launches, those that count, one with a trace; results are compared after each.
#pragma once

#include <string>

#include "cluster/scaling/launch_command.h"
#include "cluster/scaling/launched_program.h"
#include "cluster/scaling/study.h"

namespace ringmark::cluster {

enum class PointOutcome {
  kDone,     // its result is in points/
  kFailed,   // so is its cause
  kSkipped,  // it had a result already
  kStopped,  // a signal came first; nothing is in points/
};

// Throws Error(kEnvironment) when somebody else runs the point, or its results cannot be written.
PointOutcome run_point(const std::string& folder, const Study& study, const StudyPoint& point, const Launch& launch,
                       bool retry, const StopSignals& signals);

}  // namespace ringmark::cluster
