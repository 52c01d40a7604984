#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "tests/support/test_layer.h"

namespace ringmark::test {
namespace {

class CpuEngine final : public Engine {
 public:
  runtime::PrefillResult prefill(comm::Communicator& communicator, comm::TransportChoice transport,
                                 const AttentionProblem& problem, const AttentionPolicy& policy,
                                 const partition::Layout& layout, runtime::LayerShard& shard,
                                 const runtime::PrefillOptions& options) const override {
    const auto chosen = comm::choose_transport(communicator, transport);
    runtime::SilentProgress progress;
    return runtime::prefill(communicator, *chosen.transport, problem, policy, layout, shard, options, progress);
  }
  TestDecoder decoder(comm::Communicator& communicator, const runtime::KeptShape& shape,
                      const DecodeSetting& setting) const override {
    TestDecoder decoder;
    decoder.transports.push_back(comm::choose_transport(communicator, setting.transport).transport);
    if (setting.wrap) decoder.transports.push_back(setting.wrap(communicator, *decoder.transports.back()));
    auto engine =
        std::make_unique<runtime::HostDecodeEngine>(communicator, *decoder.transports.back(), shape, setting.options);
    engine->start();
    decoder.engine = std::move(engine);
    return decoder;
  }
  // Partial results of other ranks are merged in another order than a prefill adds, which hot logits magnify.
  double decode_error(const AttentionProblem& problem, const AttentionPolicy&,
                      runtime::Exchange exchange) const override {
    if (exchange == runtime::Exchange::kPull) return 0.0;
    return kMergeError * std::max(1.0, problem.scale * std::sqrt(static_cast<double>(problem.head_dim)));
  }
  double output_error(const AttentionProblem&, const AttentionPolicy&) const override { return 5e-5; }
  double lse_error() const override { return 5e-5; }
  bool wants_tensor_shapes() const override { return false; }
  bool available() const override { return true; }
};

}  // namespace

const Engine& engine_under_test() {
  static const CpuEngine engine;
  return engine;
}

}  // namespace ringmark::test
