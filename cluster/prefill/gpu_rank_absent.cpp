#include "cluster/job/no_cuda.h"
#include "cluster/prefill/gpu_rank.h"

namespace ringmark::cluster {

std::unique_ptr<GpuRank> make_gpu_rank(comm::Communicator&, const PrefillOptions&) { fail_without_cuda(); }

}  // namespace ringmark::cluster
