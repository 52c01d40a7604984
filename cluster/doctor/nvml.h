// GPUs of this host as the driver's management library sees them: all of them, whatever CUDA_VISIBLE_DEVICES says. The
// library (libnvidia-ml.so.1) comes with the driver and is looked for when the command runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringmark::cluster {

struct ManagedGpu {
  std::string uuid;  // "GPU-8f6bb1a5-1f1e-2a3c-7e0c-6d6d36bd8e4c"
  std::string name;
  std::int64_t memory = 0;  // bytes
  int nvlinks = 0;          // active ones
};

struct ManagedGpus {
  std::vector<ManagedGpu> gpus;  // in the order of their PCI addresses
  std::string driver;            // version; empty when there is none
  std::string trouble;           // why nothing is known
};

ManagedGpus managed_gpus();

}  // namespace ringmark::cluster
