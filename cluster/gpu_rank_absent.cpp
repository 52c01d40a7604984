#include "cluster/decode_backend.h"
#include "cluster/gpu_rank.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail_environment("backend = cuda: this build has no CUDA; configure with -DRINGMARK_CUDA=ON where nvcc is found");
}

}  // namespace

std::unique_ptr<GpuRank> make_gpu_rank(comm::Communicator&, const PrefillOptions&) { fail_without_cuda(); }

std::unique_ptr<DecodeBackend> make_gpu_decode(comm::Communicator&, const DecodeOptions&) { fail_without_cuda(); }

}  // namespace ringmark::cluster
