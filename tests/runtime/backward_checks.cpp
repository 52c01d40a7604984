#include "tests/runtime/backward_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <sstream>

#include "comm/thread_ranks.h"
#include "partition/sequence_grid.h"
#include "tests/support/gather_rows.h"
#include "tests/support/gradient_examples.h"

namespace ringmark::test {
namespace {

using partition::Balance;

// Where every component cancels to nothing, of terms of the size of 1, rounding is all that is left.
constexpr double kLeastGradient = 0.1;

// The rows of a shard of a tensor in token order.
std::vector<float> rows_of(const std::vector<float>& all, const partition::Layout& layout, RankId rank,
                           std::int64_t width) {
  std::vector<float> rows;
  for (const Range<TokenId>& run : layout.token_runs(rank)) {
    rows.insert(rows.end(), all.begin() + run.begin.value() * width, all.begin() + run.end.value() * width);
  }
  return rows;
}

bool scores_with_own_queries(const TestLayer& layer) {
  return layer.policy.selects() && layer.policy.scorer == Scorer::kHils && !layer.retrieval_q.empty();
}

void expect_same_bits(const LayerGradients& a, const LayerGradients& b, const std::string& what) {
  EXPECT_EQ(a.q, b.q) << what;
  EXPECT_EQ(a.retrieval_q, b.retrieval_q) << what;
  EXPECT_EQ(a.k, b.k) << what;
  EXPECT_EQ(a.v, b.v) << what;
}

}  // namespace

std::vector<BackwardRoute> backward_routes(const TestLayer& layer, comm::TransportChoice transport) {
  const std::int64_t chunk_bytes = layer.problem.kv_heads * kernels::BlockShape::of(layer.problem).bytes();
  std::vector<BackwardRoute> routes;
  for (const Balance balance : {Balance::kContiguous, Balance::kZigzag, Balance::kRotate}) {
    routes.push_back({balance, transport});
    if (balance == Balance::kZigzag) routes.push_back({balance, transport, 2 * chunk_bytes, 1, 3});
  }
  return routes;
}

std::string describe(const BackwardRoute& route) {
  std::ostringstream text;
  text << name_of(route.balance) << ", fetch budget " << route.fetch_budget << ", gradient budget "
       << route.gradient_budget << ", threads " << route.threads;
  return text.str();
}

runtime::PrefillResult run_forward(comm::Communicator& communicator, const TestLayer& layer,
                                   const partition::Layout& layout, const BackwardRoute& route) {
  runtime::LayerShard shard = layer.shard(layout, RankId(communicator.rank()));
  return engine_under_test().prefill(communicator, route.transport, layer.problem, layer.policy, layout, shard, {});
}

runtime::BackwardResult run_backward(comm::Communicator& communicator, const TestLayer& layer,
                                     const partition::Layout& layout, const BackwardRoute& route,
                                     const runtime::PrefillResult& forward, const std::vector<float>& out_gradient) {
  const RankId rank(communicator.rank());
  runtime::LayerShard shard = layer.shard(layout, rank);
  const std::vector<float> rows = rows_of(out_gradient, layout, rank, layer.problem.heads * layer.problem.head_dim);
  runtime::BackwardOptions options;
  options.fetch_budget = route.fetch_budget;
  options.gradient_budget = route.gradient_budget;
  options.threads = route.threads;
  const auto chosen = comm::choose_transport(communicator, route.transport);
  runtime::SilentProgress progress;
  return runtime::backward(communicator, *chosen.transport, layer.problem, layer.policy, layout, shard,
                           {forward.out, forward.lse, forward.selection}, rows, options, progress);
}

LayerGradients run_backward(comm::Communicator& communicator, const TestLayer& layer,
                            const std::vector<float>& out_gradient, const BackwardRoute& route) {
  const AttentionProblem& problem = layer.problem;
  const partition::Layout layout =
      partition::make_layout(partition::SequenceGrid(problem, layer.policy), communicator.size(), route.balance);
  const runtime::PrefillResult forward = run_forward(communicator, layer, layout, route);
  const runtime::BackwardResult result = run_backward(communicator, layer, layout, route, forward, out_gradient);
  const std::int64_t query_width = problem.heads * problem.head_dim;
  const std::int64_t key_width = problem.kv_heads * problem.head_dim;
  LayerGradients gathered;
  const auto rows = [&](std::int64_t width, const auto& own) {
    return gather(communicator, layout, problem.tokens, width, own);
  };
  gathered.q = rows(query_width, result.query_gradient);
  if (scores_with_own_queries(layer)) gathered.retrieval_q = rows(query_width, result.retrieval_gradient);
  gathered.k = rows(key_width, result.key_gradient);
  gathered.v = rows(key_width, result.value_gradient);
  gathered.selection = kernels::Selection(problem.tokens, problem.kv_heads, forward.selection.topk);
  gathered.selection.chunks = rows(problem.kv_heads * forward.selection.topk, forward.selection.chunks);
  std::array<std::int64_t, 2> sums = {result.bytes_fetched, result.bytes_gradients};
  communicator.all_reduce_sum("sum bytes", sums);
  gathered.bytes_fetched = sums[0];
  gathered.bytes_gradients = sums[1];
  gathered.stretches = result.stretches;
  return gathered;
}

LayerGradients run_backward_alone(const TestLayer& layer, const std::vector<float>& out_gradient) {
  const auto alone = comm::make_single_rank();
  return run_backward(*alone, layer, out_gradient, {});
}

std::vector<float> random_out_gradient(const AttentionProblem& problem, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(static_cast<std::size_t>(problem.tokens * problem.heads * problem.head_dim));
  for (float& component : gradient) component = normal(random);
  return gradient;
}

kernels::reference::Gradients reference_gradients(const TestLayer& layer, const kernels::Selection& selection,
                                                  const std::vector<float>& out_gradient) {
  const std::vector<double> wide(out_gradient.begin(), out_gradient.end());
  kernels::reference::Gradients gradients = kernels::reference::backward(layer.widened(), selection, wide, 2);
  if (scores_with_own_queries(layer)) return gradients;
  std::transform(gradients.q.begin(), gradients.q.end(), gradients.retrieval_q.begin(), gradients.q.begin(),
                 std::plus<>());
  gradients.retrieval_q.clear();
  return gradients;
}

double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double largest = kLeastGradient;
  for (const double component : want) largest = std::max(largest, std::fabs(component));
  return max_difference(got, want) / largest;
}

void check_backward(comm::Communicator& communicator, const TestLayer& layer, const std::vector<float>& out_gradient,
                    const kernels::reference::Gradients& want, const LayerGradients& alone,
                    comm::TransportChoice transport) {
  // Rounding grows with the size of the logits.
  const double heat = std::max(1.0, layer.problem.scale * std::sqrt(static_cast<double>(layer.problem.head_dim)));
  std::optional<LayerGradients> before;  // on the same layout
  partition::Balance layout_before = partition::Balance::kContiguous;
  for (const BackwardRoute& route : backward_routes(layer, transport)) {
    const std::string what =
        describe(layer) + " on " + std::to_string(communicator.size()) + " ranks, " + describe(route);
    const LayerGradients got = run_backward(communicator, layer, out_gradient, route);
    EXPECT_EQ(got.selection.chunks, alone.selection.chunks) << what;
    EXPECT_LE(relative_error(got.q, want.q), 1e-4 * heat) << what;
    EXPECT_LE(relative_error(got.retrieval_q, want.retrieval_q), 1e-4 * heat) << what;
    EXPECT_LE(relative_error(got.k, want.k), 1e-4 * heat) << what;
    EXPECT_LE(relative_error(got.v, want.v), 1e-4 * heat) << what;
    const bool landmarks_add_to_q =
        layer.policy.selects() && layer.policy.scorer == Scorer::kHils && layer.retrieval_q.empty();
    if (!landmarks_add_to_q) {
      EXPECT_EQ(got.q, alone.q) << what;
    }
    if (communicator.size() == 1) expect_same_bits(got, alone, what);
    if (before && layout_before == route.balance) expect_same_bits(got, *before, what);
    before = got;
    layout_before = route.balance;
  }
}

void check_gradient_examples(comm::Communicator& communicator, comm::TransportChoice transport) {
  for (const GradientExample& example : gradient_examples()) {
    for (const BackwardRoute& route : backward_routes(example.layer, transport)) {
      const LayerGradients got = run_backward(communicator, example.layer, example.out_gradient, route);
      EXPECT_LE(max_difference(got.q, example.want.q), 1e-6) << example.name << describe(route);
      if (!got.retrieval_q.empty()) {
        EXPECT_LE(max_difference(got.retrieval_q, example.want.retrieval_q), 1e-6) << example.name << describe(route);
      }
      EXPECT_LE(max_difference(got.k, example.want.k), 1e-6) << example.name << describe(route);
      EXPECT_LE(max_difference(got.v, example.want.v), 1e-6) << example.name << describe(route);
    }
  }
}

TestLayer packed_layer() {
  AttentionProblem problem;
  problem.tokens = 500;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 16;
  problem.dtype = DType::kFloat32;
  problem.landmark_slots = true;
  problem.cu_seqlens = {0, 5, 6, 136, 136, 500};
  problem.validate();
  return random_layer(problem, {20, 3, 4, Scorer::kHils}, 17);
}

}  // namespace ringmark::test
