#include "cluster/decode/decode_backend.h"
#include "cluster/job/gpu_device.h"
#include "core/error.h"
#include "runtime/agreement.h"
#include "runtime/cuda/decode.h"

namespace ringmark::cluster {
namespace {

class GpuDecode final : public DecodeBackend {
 public:
  GpuDecode(comm::Communicator& ranks, const DecodeOptions& options, Telemetry& telemetry)
      : ranks_(ranks), options_(options), device_(choose_gpu(ranks, options.share_gpu)) {
    telemetry.compute_on(device_.name, device_.why);
    engine_options_.trace = &telemetry.trace();
    if (options.cache_mib) engine_options_.receive_bytes = *options.cache_mib << 20;
  }

  std::int64_t memory_limit() const override { return device_.limit; }

  runtime::MemoryPlan plan(const runtime::KeptShape& shape) const override {
    if (shape.format != kvstore::BlockFormat::kAsInput) {
      fail_bad_input("the snapshot keeps blocks as " + std::string(name_of(shape.format)) +
                     ", --backend cuda only as-input: give --kv-dtype as-input");
    }
    return runtime::cuda::DeviceDecoder::plan(shape, ranks_.size(), engine_options_);
  }

  void open(const runtime::KeptShape& shape) override {
    runtime::agree(ranks_, "choose the transport", [&] {
      transport_ = comm::cuda::choose_device_transport(ranks_, device_transport(options_.transport));
    });
    runtime::agree(ranks_, "make room for the layer", [&] {
      engine_ = std::make_unique<runtime::cuda::DeviceDecoder>(ranks_, *transport_.transport, shape, engine_options_);
    });
  }

  runtime::DecodeEngine& engine() override { return *engine_; }
  void retire() override { transport_.transport->retire(); }

  DecodeBackendReport report() const override {
    const bool fetched = transport_.transport->collective_get();
    return {kernels::cuda::name_of(kernels::cuda::Path::kSimt),
            device_.why,
            std::string(transport_.transport->name()),
            transport_.why,
            fetched ? "pull: blocks are fetched into own memory" : "pull: blocks are read where they are",
            {}};
  }

 private:
  comm::Communicator& ranks_;
  const DecodeOptions& options_;
  GpuDevice device_;
  runtime::cuda::DeviceDecodeOptions engine_options_;
  comm::cuda::ChosenDeviceTransport transport_;
  std::unique_ptr<runtime::cuda::DeviceDecoder> engine_;
};

}  // namespace

std::unique_ptr<DecodeBackend> make_gpu_decode(comm::Communicator& ranks, const DecodeOptions& options,
                                               Telemetry& telemetry) {
  return std::make_unique<GpuDecode>(ranks, options, telemetry);
}

}  // namespace ringmark::cluster
