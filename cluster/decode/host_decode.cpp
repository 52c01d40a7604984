#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cluster/decode/decode_backend.h"
#include "cluster/job/host.h"
#include "core/error.h"
#include "kernels/cpu/isa.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

class HostDecode final : public DecodeBackend {
 public:
  HostDecode(comm::Communicator& ranks, const DecodeOptions& options, int threads, Telemetry& telemetry)
      : ranks_(ranks), options_(options), telemetry_(telemetry) {
    engine_options_.trace = &telemetry.trace();
    engine_options_.exchange = options.exchange;
    engine_options_.threads = threads;
  }

  std::int64_t memory_limit() const override { return available_memory() / ranks_.host_ranks(); }

  runtime::MemoryPlan plan(const runtime::KeptShape& shape) const override {
    runtime::DecodeOptions engine = engine_options_;
    engine.cache_bytes = cache_bytes(shape);
    runtime::MemoryPlan plan = runtime::plan_decode_memory(shape, {ranks_.size(), options_.rows}, engine);
    plan.spill("kept blocks", options_.spill());
    return plan;
  }

  void open(const runtime::KeptShape& shape) override {
    runtime::agree(ranks_, "choose the transport", [&] {
      transport_ = comm::choose_transport(ranks_, host_transport(options_.transport),
                                          runtime::KeptLayer::exposed_bytes(shape, ranks_.size()), options_.spill());
    });
    transport_ = telemetry_.observe(std::move(transport_));
    runtime::agree(ranks_, "check the cache", [&] { engine_options_.cache_bytes = cache_bytes(shape); });
    runtime::agree(ranks_, "make room for the layer", [&] {
      engine_ = std::make_unique<runtime::HostDecodeEngine>(ranks_, *transport_.transport, shape, engine_options_);
    });
    engine_->start();
  }

  runtime::DecodeEngine& engine() override { return *engine_; }
  void retire() override { transport_.transport->retire(); }

  DecodeBackendReport report() const override {
    return {name_of(kernels::cpu::active_isa()),       "",
            std::string(transport_.transport->name()), transport_.why,
            std::string(name_of(options_.exchange)),   engine_->costs()};
  }

 private:
  static constexpr std::int64_t kUsualCacheMib = 64;

  std::int64_t cache_bytes(const runtime::KeptShape& shape) const {
    const std::int64_t least = runtime::Decoder::least_cache_bytes(shape, ranks_.size());
    if (!options_.cache_mib) return std::max(least, kUsualCacheMib << 20);
    const std::int64_t bytes = *options_.cache_mib << 20;
    if (bytes < least) {
      fail_bad_input(fmt::format("cache-mib = {} is below the {} MiB that one row may need at once",
                                 *options_.cache_mib, (least + (1 << 20) - 1) >> 20));
    }
    return bytes;
  }

  comm::Communicator& ranks_;
  const DecodeOptions& options_;
  Telemetry& telemetry_;
  runtime::DecodeOptions engine_options_;
  comm::ChosenTransport transport_;
  std::unique_ptr<runtime::HostDecodeEngine> engine_;
};

}  // namespace

std::unique_ptr<DecodeBackend> make_host_decode(comm::Communicator& ranks, const DecodeOptions& options, int threads,
                                                Telemetry& telemetry) {
  return std::make_unique<HostDecode>(ranks, options, threads, telemetry);
}

}  // namespace ringmark::cluster
