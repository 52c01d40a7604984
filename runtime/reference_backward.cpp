#include "runtime/reference_backward.h"

#include <cstring>

#include "core/error.h"
#include "kernels/reference/backward.h"
#include "runtime/reference_layer.h"

namespace ringmark::runtime {
namespace {

// The rows of this rank of a tensor in token order, whose rows are `width` wide.
std::vector<float> own_rows(const std::vector<double>& all, const partition::Layout& layout, RankId rank,
                            std::int64_t width) {
  std::vector<float> rows;
  for (const Range<TokenId>& run : layout.token_runs(rank)) {
    for (std::int64_t at = run.begin.value() * width; at < run.end.value() * width; ++at) {
      rows.push_back(static_cast<float>(all[static_cast<std::size_t>(at)]));
    }
  }
  return rows;
}

kernels::Selection gather_selection(comm::Communicator& communicator, const AttentionProblem& problem,
                                    const partition::Layout& layout, const kernels::Selection& own) {
  kernels::Selection all(problem.tokens, problem.kv_heads, own.topk);
  const std::vector<std::byte> bytes =
      gather_rows(communicator, layout, problem.tokens, std::as_bytes(std::span(own.chunks)),
                  problem.kv_heads * own.topk * static_cast<std::int64_t>(sizeof(std::int32_t)));
  if (!bytes.empty()) std::memcpy(all.chunks.data(), bytes.data(), bytes.size());
  return all;
}

}  // namespace

BackwardResult reference_backward(comm::Communicator& communicator, const AttentionProblem& problem,
                                  const AttentionPolicy& policy, const partition::Layout& layout,
                                  const LayerShard& shard, const kernels::Selection& selection,
                                  std::span<const float> out_gradient, int threads) {
  check_backward(problem, policy);
  require(shard.landmark_queries().rows == 0, "landmark queries with a backward pass are rows of the sequence");
  BackwardResult result;
  const RankId rank(communicator.rank());
  const std::int64_t query_width = problem.heads * problem.head_dim;
  const std::int64_t key_width = problem.kv_heads * problem.head_dim;
  const auto float_bytes = static_cast<std::int64_t>(sizeof(float));
  kernels::reference::Layer layer;
  kernels::Selection chosen;
  std::vector<double> gradient;
  {
    const auto span = result.clock.time("fetch");
    layer = gather_layer(communicator, problem, policy, layout, shard);
    chosen = gather_selection(communicator, problem, layout, selection);
    const std::vector<std::byte> bytes =
        gather_rows(communicator, layout, problem.tokens, std::as_bytes(out_gradient), query_width * float_bytes);
    gradient =
        kernels::reference::widen({bytes.data(), DType::kFloat32, problem.tokens, problem.heads, problem.head_dim});
  }
  const auto span = result.clock.time("attend");
  kernels::reference::Gradients all = kernels::reference::backward(layer, chosen, gradient, threads);
  if (scores_with_own_queries(policy, shard)) {
    result.retrieval_gradient = own_rows(all.retrieval_q, layout, rank, query_width);
  } else {
    for (std::size_t n = 0; n < all.q.size(); ++n) all.q[n] += all.retrieval_q[n];
  }
  result.query_gradient = own_rows(all.q, layout, rank, query_width);
  result.key_gradient = own_rows(all.k, layout, rank, key_width);
  result.value_gradient = own_rows(all.v, layout, rank, key_width);
  result.bytes_fetched = gathered_key_bytes(problem, layout.token_count(rank));
  return result;
}

}  // namespace ringmark::runtime
