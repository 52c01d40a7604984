#include "tests/runtime/prefill_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "comm/thread_ranks.h"
#include "partition/sequence_grid.h"

namespace ringmark::test {
namespace {

runtime::PrefillOptions options_of(const Route& route, std::int64_t fetch_budget = std::int64_t{64} << 20) {
  runtime::PrefillOptions options;
  options.merge = route.merge;
  options.fetch_budget = fetch_budget;
  return options;
}

bool flip_one_bit_of_each(std::vector<std::byte>& tensor, std::int64_t token, std::int64_t tokens) {
  const auto row_bytes = static_cast<std::int64_t>(tensor.size()) / tokens;
  // The sign of every element: a large change that stays finite in every dtype.
  for (std::int64_t byte = 1; byte < row_bytes; byte += 2)
    tensor[static_cast<std::size_t>(token * row_bytes + byte)] ^= std::byte{0x80};
  return !tensor.empty();
}

}  // namespace

std::string describe(const Route& route) {
  std::ostringstream text;
  text << partition::name_of(route.balance) << " " << runtime::name_of(route.merge) << " transport "
       << static_cast<int>(route.transport);
  return text.str();
}

std::vector<Route> routes(comm::TransportChoice transport) {
  std::vector<Route> all;
  for (const auto balance : {partition::Balance::kContiguous, partition::Balance::kZigzag}) {
    for (const auto merge : {runtime::Merge::kScores, runtime::Merge::kLandmarks}) {
      all.push_back({balance, merge, transport});
    }
  }
  return all;
}

std::uint64_t check_golden(comm::Communicator& communicator, const GoldenLayer& golden, const Route& route) {
  const TestLayer& layer = golden.layer;
  const GatheredResult result = run_prefill(communicator, route.transport, layer, route.balance, options_of(route));
  const Engine& engine = engine_under_test();
  const double output_error = std::min(2e-3, engine.output_error(layer.problem, layer.policy));
  EXPECT_LE(max_difference(result.out, golden.out), output_error) << describe(route);
  EXPECT_LE(max_difference(result.lse, golden.lse), engine.lse_error()) << describe(route);
  std::int64_t different = 0;
  const auto topk = static_cast<std::size_t>(layer.policy.topk);
  for (std::size_t row = 0; row < golden.margin.size(); ++row) {
    if (!(golden.margin[row] > 1e-4)) continue;
    different += !std::equal(result.chunks.begin() + static_cast<std::ptrdiff_t>(row * topk),
                             result.chunks.begin() + static_cast<std::ptrdiff_t>((row + 1) * topk),
                             golden.chunks.begin() + static_cast<std::ptrdiff_t>(row * topk));
  }
  EXPECT_EQ(different, 0) << describe(route);
  return result.digest;
}

void expect_near_reference(const GatheredResult& result, const TestLayer& layer,
                           const kernels::reference::Result& reference, const Bounds& bounds, const std::string& what) {
  const kernels::Selection& wanted = reference.selection;
  const std::int64_t heads = layer.problem.heads, agreeing = heads / wanted.choosers;
  const auto d = static_cast<std::ptrdiff_t>(layer.problem.head_dim);
  // Rounding grows with the size of the logits.
  const double heat = std::max(1.0, layer.problem.scale * std::sqrt(static_cast<double>(layer.problem.head_dim)));
  double worst = 0.0;
  for (std::int64_t at = 0; at < layer.problem.tokens * wanted.choosers; ++at) {
    const std::int64_t row = at / wanted.choosers, chooser = at % wanted.choosers;
    const auto slots = wanted.slots(row, chooser);
    if (!std::equal(slots.begin(), slots.end(), result.chunks.begin() + at * wanted.topk)) {
      // Equal scores tie in both; hot logits also saturate ranks at 0, which fp32 need not.
      const double margin = reference.margin[static_cast<std::size_t>(at)];
      const bool tied = margin == 0.0 && heat < 1.5;
      EXPECT_FALSE(margin > 1e-4 * heat || tied) << what << " row " << row << " margin " << margin;
      continue;
    }
    for (std::int64_t h = chooser * agreeing; h < (chooser + 1) * agreeing; ++h) {
      const auto head = static_cast<std::ptrdiff_t>(row * heads + h);
      const std::vector<float> out(result.out.begin() + head * d, result.out.begin() + (head + 1) * d);
      const std::vector<double> want(reference.out.begin() + head * d, reference.out.begin() + (head + 1) * d);
      const auto index = static_cast<std::size_t>(head);
      worst = std::max(worst, max_difference(out, want) / bounds.out);
      worst = std::max(worst, max_difference({result.lse[index]}, {reference.lse[index]}) / bounds.lse);
    }
  }
  EXPECT_LE(worst, heat) << what << ": in units of the bounds";
}

AttentionProblem small_problem(bool landmark_slots) {
  AttentionProblem problem;
  problem.tokens = 150;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = 8;
  problem.dtype = DType::kFloat32;
  problem.scale = 0.2f;
  problem.landmark_slots = landmark_slots;
  return problem;
}

std::int64_t item_bytes(const runtime::MemoryPlan& plan, std::string_view name) {
  for (const runtime::MemoryItem& item : plan.items) {
    if (item.name == name) return item.bytes;
  }
  return -1;
}

GatheredResult same_on_any_ranks(const TestLayer& layer, std::int64_t fetch_budget,
                                 const kernels::PositionEncoding& positions) {
  GatheredResult first;
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const auto merge : {runtime::Merge::kScores, runtime::Merge::kLandmarks}) {
      const auto balance = ranks % 2 == 0 ? partition::Balance::kZigzag : partition::Balance::kContiguous;
      const Route route{balance, merge, comm::TransportChoice::kAuto};
      runtime::PrefillOptions options = options_of(route, fetch_budget);
      options.positions = positions;
      comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) {
        const GatheredResult got = run_prefill(communicator, route.transport, layer, balance, options);
        if (communicator.rank() != 0) return;
        if (first.out.empty()) first = got;
        const std::string what = describe(layer) + " ranks=" + std::to_string(ranks) + " " + describe(route);
        EXPECT_EQ(got.chunks, first.chunks) << what;
        EXPECT_TRUE(got.out == first.out && got.lse == first.lse) << what << ": other bits";
      });
    }
  }
  return first;
}

std::uint64_t check_against_reference(comm::Communicator& communicator, const TestLayer& layer,
                                      const kernels::reference::Result& reference, const Route& route,
                                      std::int64_t fetch_budget) {
  const GatheredResult result =
      run_prefill(communicator, route.transport, layer, route.balance, options_of(route, fetch_budget));
  const Engine& engine = engine_under_test();
  const std::string what = describe(layer) + " ranks=" + std::to_string(communicator.size()) + " " + describe(route);
  expect_near_reference(result, layer, reference,
                        {engine.output_error(layer.problem, layer.policy), engine.lse_error()}, what);
  return result.digest;
}

void check_probe(comm::Communicator& communicator, const TestLayer& layer, TokenId token, const Route& route) {
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  TestLayer perturbed = layer;
  for (auto* tensor : {&perturbed.q, &perturbed.retrieval_q, &perturbed.k, &perturbed.v}) {
    if (!tensor->empty()) flip_one_bit_of_each(*tensor, token.value(), layer.problem.tokens);
  }
  const auto options = options_of(route);
  const GatheredResult before = run_prefill(communicator, route.transport, layer, route.balance, options);
  const GatheredResult after = run_prefill(communicator, route.transport, perturbed, route.balance, options);
  const std::int64_t width = layer.problem.heads * layer.problem.head_dim;
  const Range<TokenId> document = grid.document_of(token).tokens;
  for (TokenId row(0); row < TokenId(layer.problem.tokens); ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(row.value() * width);
    const bool changed =
        !std::equal(before.out.begin() + begin, before.out.begin() + begin + width, after.out.begin() + begin);
    const std::string what = describe(layer) + " " + describe(route) + " token " + std::to_string(token.value()) +
                             " row " + std::to_string(row.value());
    if (row < token || !document.contains(row)) {
      EXPECT_FALSE(changed) << what << " must not see the token";
    } else if (row == token ||
               ((grid.window_of(row).contains(token) || grid.sinks_of(row).contains(token)) && grid.is_key(token))) {
      EXPECT_TRUE(changed) << what << " must see the token";
    }
  }
}

}  // namespace ringmark::test
