#include "cluster/doctor/probe_transports.h"

namespace ringmark::cluster {

Findings probe_gpu_transports(comm::Communicator&, const DoctorOptions&) {
  return {{Level::kFail, "transport", "this build has no CUDA, and --backend cuda is asked for",
           "configure with -DRINGMARK_CUDA=ON where nvcc is found, or use --backend cpu"}};
}

}  // namespace ringmark::cluster
