// `ringmark scaling run`: begins a study, or goes on with one.
#pragma once

#include "cluster/scaling/scaling_options.h"

namespace ringmark::cluster {

// Returns the exit code: 0 when all points that were asked for are done, 1 when one has failed, 75 when told to stop.
int run_study(const ScalingRunOptions& options);

}  // namespace ringmark::cluster
