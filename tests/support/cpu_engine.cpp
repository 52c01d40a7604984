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
