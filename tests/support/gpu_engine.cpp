// The CUDA engine. RINGMARK_TEST_KERNELS=hopper, mma or simt forces a family of kernels where the shape allows it;
// RINGMARK_TEST_FETCH=1 makes decoding fetch blocks that it could read from the memory of peers;
// RINGMARK_TEST_TRANSPORT forces cuda-ipc or nccl on ranks that are processes.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>

#include "comm/cuda/choose_device.h"
#include "comm/cuda/choose_device_transport.h"
#include "runtime/cuda/decode.h"
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

bool fetches_blocks() { return std::getenv("RINGMARK_TEST_FETCH") != nullptr; }

// Ranks that are processes take a GPU each, as far as there are enough.
std::unique_ptr<comm::cuda::DeviceTransport> make_transport(comm::Communicator& communicator) {
  using comm::cuda::DeviceTransportChoice;
  auto choice = DeviceTransportChoice::kAuto;
  if (!communicator.shares_address_space()) {
    comm::cuda::choose_device(communicator, true);
    const char* text = std::getenv("RINGMARK_TEST_TRANSPORT");
    const std::string_view name = text == nullptr ? "" : text;
    if (name == "cuda-ipc") choice = DeviceTransportChoice::kCudaIpc;
    if (name == "nccl") choice = DeviceTransportChoice::kNccl;
  }
  return comm::cuda::choose_device_transport(communicator, choice).transport;
}

// As if the GPU could not read the memory of its peers itself.
class FetchingTransport final : public comm::cuda::DeviceTransport {
 public:
  explicit FetchingTransport(comm::cuda::DeviceTransport& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  comm::Bytes expose(std::int64_t bytes) override { return inner_.expose(bytes); }
  void publish() override { inner_.publish(); }
  std::unique_ptr<comm::PendingReads> get(std::span<const comm::RemoteRead> reads) override {
    return inner_.get(reads);
  }
  void retire() override { inner_.retire(); }
  cudaStream_t stream() const override { return inner_.stream(); }
  bool collective_get() const override { return true; }
  const std::byte* peer_address(int, int) const override { return nullptr; }

 private:
  comm::cuda::DeviceTransport& inner_;
};

class GpuEngine final : public Engine {
 public:
  runtime::PrefillResult prefill(comm::Communicator& communicator, comm::TransportChoice,
                                 const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const partition::Layout& layout, runtime::LayerShard& shard,
                                 const runtime::PrefillOptions& options) const override {
    const auto transport = make_transport(communicator);
    runtime::cuda::DevicePrefillOptions device;
    device.merge = options.merge;
    device.fetch_budget = options.fetch_budget;
    device.path = path_of(problem, policy);
    runtime::SilentProgress progress;
    return runtime::cuda::prefill_on_gpu(communicator, *transport, problem, policy, layout, shard, device, progress);
  }
  TestDecoder decoder(comm::Communicator& communicator, const runtime::KeptShape& shape,
                      const DecodeSetting& setting) const override {
    auto transport = make_transport(communicator);
    TestDecoder decoder;
    comm::cuda::DeviceTransport* outermost = transport.get();
    decoder.transports.push_back(std::move(transport));
    if (fetches_blocks()) {
      auto fetching = std::make_unique<FetchingTransport>(*outermost);
      outermost = fetching.get();
      decoder.transports.push_back(std::move(fetching));
    }
    runtime::cuda::DeviceDecodeOptions options;
    options.tile_rows = setting.options.tile_rows;
    decoder.engine = std::make_unique<runtime::cuda::DeviceDecoder>(communicator, *outermost, shape, options);
    return decoder;
  }
  // A prefill by tensor cores against a decode on the plain cores.
  double decode_error(const AttentionProblem& problem, const AttentionPolicy& policy,
                      runtime::Exchange) const override {
    return path_of(problem, policy) == Path::kSimt ? 2e-5 : 2e-3;
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
