// `ringmark scaling report`: page, plots and tables of a study.
#pragma once

#include "cluster/scaling/scaling_options.h"

namespace ringmark::cluster {

// Returns the exit code: 1 when a point has no result or results disagree; all is written then too.
int report_study(const ScalingReportOptions& options);

}  // namespace ringmark::cluster
