// The CUDA engine. RINGMARK_TEST_KERNELS=hopper, mma or simt forces a family of kernels where the shape allows it.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>

#include "comm/cuda/choose_device_transport.h"
#include "runtime/cuda/prefill.h"
#include "tests/support/test_layer.h"

namespace ringmark::test {
namespace {

using kernels::cuda::Path;

std::optional<Path> wanted_path() {
  const char* text = std::getenv("RINGMARK_TEST_KERNELS");
  if (text == nullptr) return std::nullopt;
  for (const Path path : {Path::kHopper, Path::kMma, Path::kSimt}) {
    if (std::string_view(text) == kernels::cuda::name_of(path)) return path;
  }
  return std::nullopt;
}

Path path_of(const AttentionProblem& problem, const AttentionPolicy& policy) {
  const auto shape = kernels::cuda::LayerShape::of(problem, policy, partition::SequenceGrid(problem, policy));
  if (!kernels::cuda::has_tensor_kernels(shape)) return Path::kSimt;
  return wanted_path().value_or(kernels::cuda::choose_path(shape));
}

class GpuEngine final : public Engine {
 public:
  runtime::PrefillResult prefill(comm::Communicator& communicator, comm::TransportChoice,
                                 const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const partition::Layout& layout, runtime::LayerShard& shard,
                                 const runtime::PrefillOptions& options) const override {
    const auto chosen = comm::cuda::choose_device_transport(communicator, comm::cuda::DeviceTransportChoice::kAuto);
    runtime::cuda::DevicePrefillOptions device;
    device.merge = options.merge;
    device.fetch_budget = options.fetch_budget;
    device.path = path_of(problem, policy);
    runtime::SilentProgress progress;
    return runtime::cuda::prefill_on_gpu(communicator, *chosen.transport, problem, policy, layout, shard, device,
                                         progress);
  }
  // Tensor cores take softmax weights in fp16: 2^-12 of values up to 5, of 9 in the real layer.
  double output_error(const AttentionProblem& problem, const AttentionPolicy& policy) const override {
    return path_of(problem, policy) == Path::kSimt ? 5e-5 : 2e-3;
  }
  double lse_error() const override { return 5e-5; }
  bool wants_tensor_shapes() const override { return true; }
  bool available() const override {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  }
};

}  // namespace

const Engine& engine_under_test() {
  static const GpuEngine engine;
  return engine;
}

}  // namespace ringmark::test
