// The line of a stage from measurements of it.
#pragma once

#include <span>

#include "cluster/planning/machine_profile.h"

namespace ringmark::cluster {

struct StageSample {
  double rows = 0;
  double units = 0;
  double seconds = 0;
};

struct StageFit {
  StageRate rate;
  double mean_error = 0;  // of |predicted / measured - 1|
  double worst_error = 0;
};

// The coefficients >= 0 with the least sum of squared relative errors: a short measurement counts as much as a long
// one. Samples that took no time are left out; without any, the rate is 0.
StageFit fit_stage(std::span<const StageSample> samples);

}  // namespace ringmark::cluster
