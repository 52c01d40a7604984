#include "runtime/reference_prefill.h"

#include "kernels/reference/attention.h"
#include "runtime/reference_layer.h"

namespace ringmark::runtime {
namespace {

std::vector<float> round_to_float(const std::vector<double>& values) { return {values.begin(), values.end()}; }

}  // namespace

PrefillResult reference_prefill(comm::Communicator& communicator, const AttentionProblem& problem,
                                const AttentionPolicy& policy, const partition::Layout& layout, const LayerShard& shard,
                                const ReferenceOfRows& attend) {
  PrefillResult result;
  const kernels::reference::Layer layer = [&] {
    const auto span = result.clock.time("fetch");
    return gather_layer(communicator, problem, policy, layout, shard);
  }();
  const auto span = result.clock.time("attend");
  const std::vector<TokenId> tokens = layout.tokens_of(RankId(communicator.rank()));
  kernels::reference::Result reference = attend(layer, tokens);
  result.out = round_to_float(reference.out);
  result.lse = round_to_float(reference.lse);
  result.selection = std::move(reference.selection);
  result.bytes_fetched = gathered_key_bytes(problem, std::ssize(tokens));
  return result;
}

PrefillResult reference_prefill(comm::Communicator& communicator, const AttentionProblem& problem,
                                const AttentionPolicy& policy, const partition::Layout& layout, const LayerShard& shard,
                                int threads) {
  return reference_prefill(communicator, problem, policy, layout, shard,
                           [threads](const kernels::reference::Layer& layer, std::span<const TokenId> tokens) {
                             return kernels::reference::attend(layer, tokens, threads);
                           });
}

}  // namespace ringmark::runtime
