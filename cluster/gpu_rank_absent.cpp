#include "cluster/gpu_rank.h"
#include "core/error.h"

namespace ringmark::cluster {

std::unique_ptr<GpuRank> make_gpu_rank(comm::Communicator&, const PrefillOptions&) {
  fail_environment("backend = cuda: this build has no CUDA; configure with -DRINGMARK_CUDA=ON where nvcc is found");
}

}  // namespace ringmark::cluster
