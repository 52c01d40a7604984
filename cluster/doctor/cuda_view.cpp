#include "cluster/doctor/cuda_view.h"

#include "comm/cuda/choose_device.h"

namespace ringmark::cluster {

std::optional<comm::VisibleGpus> cuda_view() { return comm::cuda::look_around(); }

}  // namespace ringmark::cluster
