// What the stages of a layer take on one rank that has its core, or GPU, to itself.
#pragma once

#include <string>
#include <vector>

#include "cluster/planning/calibrate_options.h"
#include "cluster/planning/machine_profile.h"
#include "cluster/planning/stage_fit.h"

namespace ringmark::cluster {

struct NamedFit {
  std::string stage;
  StageFit fit;
};

struct ComputeMeasurement {
  ComputeRates rates;
  std::vector<NamedFit> fits;  // in the order of the stages
  double mean_error = 0;  // of the seconds of whole layers as the rates predict them, over those of the middle policy
  double worst_error = 0;
  std::string where;            // instruction set, or GPU
  std::int64_t gpu_memory = 0;  // bytes; 0 on a cpu
};

// On this rank alone.
ComputeMeasurement measure_compute(const CalibrateOptions& options);

}  // namespace ringmark::cluster
