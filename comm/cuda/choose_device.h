// The GPU of this rank.
#pragma once

#include <string>
#include <vector>

#include "comm/assign_devices.h"
#include "comm/communicator.h"

namespace ringmark::comm::cuda {

// What CUDA shows to this process. Creates no context on any of them.
VisibleGpus look_around();

struct ChosenDevice {
  int device = 0;   // CUDA's number in this process
  int sharers = 1;  // ranks on this GPU, this one included
  std::string why;  // one line: which GPU and of how many
};

// Collective. Makes the chosen GPU current in the calling thread; every other thread that uses CUDA has to do so itself
// (cudaSetDevice), or it takes memory on GPU 0. Throws Error(kEnvironment) on every rank when one has no GPU, or when
// two would share one without `share` (see assign_gpus).
ChosenDevice choose_device(Communicator& communicator, bool share);

// Collective: the current GPU of every rank, by rank.
std::vector<Uuid> gather_current_gpus(Communicator& communicator);

}  // namespace ringmark::comm::cuda
