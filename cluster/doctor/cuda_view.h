// The GPUs that CUDA itself shows to this process: what the job decides by.
#pragma once

#include <optional>

#include "comm/assign_devices.h"

namespace ringmark::cluster {

// Nothing in builds without CUDA.
std::optional<comm::VisibleGpus> cuda_view();

}  // namespace ringmark::cluster
