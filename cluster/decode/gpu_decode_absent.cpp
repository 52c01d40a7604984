#include "cluster/decode/decode_backend.h"
#include "cluster/job/no_cuda.h"

namespace ringmark::cluster {

std::unique_ptr<DecodeBackend> make_gpu_decode(comm::Communicator&, const DecodeOptions&, Telemetry&) {
  fail_without_cuda();
}

}  // namespace ringmark::cluster
