#include "tests/runtime/decode_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "comm/thread_ranks.h"
#include "kvstore/snapshot.h"

namespace ringmark::test {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Every rank fills the rows of its own chunks of a tensor of the whole sequence; afterwards all ranks have all rows.
template <class T>
void complete(comm::Communicator& communicator, const runtime::KeptSequences& sequences, std::vector<T>& values) {
  std::vector<std::vector<T>> of_rank(size(communicator.size()), std::vector<T>(values.size()));
  std::vector<comm::Bytes> all;
  for (auto& part : of_rank) all.push_back(std::as_writable_bytes(std::span(part)));
  communicator.all_gather("gather results", std::as_bytes(std::span(values)), all);
  const std::int64_t tokens = sequences.grid().tokens();
  const auto width = static_cast<std::int64_t>(values.size()) / tokens;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const RankId owner = sequences.layout().owner(sequences.grid().chunk_of(TokenId(token)));
    std::copy_n(of_rank[size(owner.value())].begin() + token * width, width, values.begin() + token * width);
  }
}

// The rows of these tokens, out of a tensor of the whole sequence.
template <class T>
std::vector<T> rows_of(const std::vector<T>& values, std::int64_t all_tokens, const std::vector<TokenId>& tokens) {
  const auto width = static_cast<std::int64_t>(values.size()) / all_tokens;
  std::vector<T> rows;
  for (const TokenId token : tokens) {
    const auto begin = values.begin() + token.value() * width;
    rows.insert(rows.end(), begin, begin + width);
  }
  return rows;
}

double largest_difference(const std::vector<float>& got, const std::vector<float>& want) {
  return max_difference(got, std::vector<double>(want.begin(), want.end()));
}

}  // namespace

TestLayer one_sequence(std::int64_t tokens, std::int64_t window, std::uint64_t seed) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = kChunk;
  problem.scale = 1.0f / std::sqrt(32.0f);
  problem.landmark_slots = true;
  return random_layer(problem, {window, 3, 0, Scorer::kHils}, seed);
}

std::vector<std::int64_t> sequence_lengths(const TestLayer& layer) {
  const std::vector<std::int64_t>& starts = layer.problem.cu_seqlens;
  if (starts.empty()) return {layer.problem.tokens};
  std::vector<std::int64_t> lengths;
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) lengths.push_back(starts[s + 1] - starts[s]);
  return lengths;
}

Steps make_steps(const std::vector<std::int64_t>& lengths, std::int64_t first, std::int64_t most, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Steps steps(1);
  std::vector<std::int64_t> order;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const std::int64_t prefix = std::min(first, lengths[s]);
    steps[0].insert(steps[0].end(), size(prefix), static_cast<std::int64_t>(s));
    order.insert(order.end(), size(lengths[s] - prefix), static_cast<std::int64_t>(s));
  }
  std::shuffle(order.begin(), order.end(), random);
  for (auto next = order.begin(); next != order.end();) {
    const auto rows = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(most));
    const auto end = next + std::min<std::int64_t>(rows, order.end() - next);
    steps.emplace_back(next, end);
    next = end;
  }
  return steps;
}

TokenRows take_rows(const TestLayer& layer, const std::vector<TokenId>& tokens) {
  const auto take = [&](const auto& all) { return rows_of(all, layer.problem.tokens, tokens); };
  return {take(layer.q), take(layer.retrieval_q), take(layer.k), take(layer.v)};
}

runtime::NewTokens TokenRows::view(const AttentionProblem& problem, const std::vector<std::int64_t>& sequences) const {
  const auto rows = static_cast<std::int64_t>(sequences.size());
  const auto of = [&](const std::vector<std::byte>& bytes, std::int64_t heads) {
    return RowsView{bytes.data(), problem.dtype, rows, heads, problem.head_dim};
  };
  const RowsView queries = of(q, problem.heads);
  return {sequences, queries, retrieval_q.empty() ? queries : of(retrieval_q, problem.heads), of(k, problem.kv_heads),
          of(v, problem.kv_heads)};
}

DecodeOutcome run_decode(comm::Communicator& communicator, const TestLayer& layer, const DecodeRun& run) {
  const AttentionProblem& problem = layer.problem;
  std::optional<kvstore::Snapshot> snapshot;
  runtime::KeptShape shape{0, problem, layer.policy, run.format, 0};
  if (!run.snapshot.empty()) {
    snapshot.emplace(kvstore::Snapshot::open(communicator, run.snapshot));
    shape = runtime::grown_shape(snapshot->manifest(), sequence_lengths(layer));
    shape.format = run.format;
  }
  const TestDecoder decoder = engine_under_test().decoder(communicator, shape, run);
  runtime::DecodeEngine& engine = *decoder.engine;
  if (snapshot) engine.load(*snapshot);
  const std::int64_t width = problem.heads * problem.head_dim;
  const std::int64_t topk = layer.policy.selects() ? layer.policy.topk : 0;
  const float unwritten = std::numeric_limits<float>::quiet_NaN();
  DecodeOutcome outcome;
  GatheredResult& result = outcome.result;
  result.out.assign(size(problem.tokens * width), unwritten);
  result.lse.assign(size(problem.tokens * problem.heads), unwritten);
  result.chunks.assign(size(problem.tokens * problem.kv_heads * topk), -2);
  for (const auto& sequences : run.steps) {
    const TokenRows rows = take_rows(layer, engine.sequences().place(sequences));
    const runtime::DecodeStep step = engine.step(rows.view(problem, sequences), false);
    for (std::size_t n = 0; n < step.rows.size(); ++n) {
      const auto at = static_cast<std::int64_t>(n);
      const std::int64_t token = step.tokens[size(step.rows[n])].value();
      std::copy_n(step.out.begin() + at * width, width, result.out.begin() + token * width);
      std::copy_n(step.lse.begin() + at * problem.heads, problem.heads, result.lse.begin() + token * problem.heads);
    }
    for (std::size_t row = 0; row < step.tokens.size(); ++row) {
      const std::int64_t of_row = problem.kv_heads * topk;
      std::copy_n(step.selection.chunks.begin() + static_cast<std::int64_t>(row) * of_row, of_row,
                  result.chunks.begin() + step.tokens[row].value() * of_row);
    }
    result.digest += kernels::selection_digest(step.selection, step.tokens);
    outcome.tokens.insert(outcome.tokens.end(), step.tokens.begin(), step.tokens.end());
    outcome.traffic += step.traffic;
  }
  if (!run.save.empty()) kvstore::write_snapshot(communicator, run.save, engine.contents());
  complete(communicator, engine.sequences(), result.out);
  complete(communicator, engine.sequences(), result.lse);
  std::array<std::int64_t, 7> sums = {outcome.traffic.bytes_pulled,   outcome.traffic.bytes_pushed,
                                      outcome.traffic.bytes_gathered, outcome.traffic.bytes_of_plans,
                                      outcome.traffic.blocks_pulled,  outcome.traffic.blocks_pushed,
                                      outcome.traffic.cache_hits};
  communicator.all_reduce_sum("sum the traffic", sums);
  outcome.traffic = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]};
  decoder.transports.back()->retire();
  return outcome;
}

runtime::DecodeTraffic check_decode(comm::Communicator& communicator, const TestLayer& layer, const DecodeRun& run) {
  const DecodeOutcome decoded = run_decode(communicator, layer, run);
  const GatheredResult whole =
      run_prefill(communicator, run.transport, layer, partition::Balance::kRotate, runtime::PrefillOptions());
  const std::string what = describe(layer) + " ranks=" + std::to_string(communicator.size()) + " " +
                           std::string(runtime::name_of(run.options.exchange)) + " cache " +
                           std::to_string(run.options.cache_bytes) + " steps " + std::to_string(run.steps.size());
  const auto rows = static_cast<std::int64_t>(decoded.tokens.size());
  kernels::Selection chosen(rows, layer.problem.kv_heads, layer.policy.selects() ? layer.policy.topk : 0);
  chosen.chunks = rows_of(whole.chunks, layer.problem.tokens, decoded.tokens);
  EXPECT_EQ(rows_of(decoded.result.chunks, layer.problem.tokens, decoded.tokens), chosen.chunks) << what;
  EXPECT_EQ(decoded.result.digest, kernels::selection_digest(chosen, decoded.tokens)) << what;
  if (rows == layer.problem.tokens) {
    EXPECT_EQ(decoded.result.digest, whole.digest) << what;
  }

  const auto out = rows_of(decoded.result.out, layer.problem.tokens, decoded.tokens);
  const auto lse = rows_of(decoded.result.lse, layer.problem.tokens, decoded.tokens);
  const auto whole_out = rows_of(whole.out, layer.problem.tokens, decoded.tokens);
  const auto whole_lse = rows_of(whole.lse, layer.problem.tokens, decoded.tokens);
  const double bound = engine_under_test().decode_error(layer.problem, layer.policy, run.options.exchange);
  EXPECT_LE(largest_difference(out, whole_out), bound) << what;
  EXPECT_LE(largest_difference(lse, whole_lse), bound) << what;
  return decoded.traffic;
}

// Three sequences of different lengths, one of them empty at first sight: it ends before the others have begun.
TestLayer batch_layer(std::int64_t group, Scorer scorer, std::uint64_t seed) {
  AttentionProblem problem;
  problem.cu_seqlens = {0, 37, 37, 200, 293};
  problem.tokens = problem.cu_seqlens.back();
  problem.heads = 2 * group;
  problem.kv_heads = 2;
  problem.head_dim = 32;
  problem.chunk_size = kChunk;
  problem.scale = 1.0f / std::sqrt(32.0f);
  problem.landmark_slots = seed % 2 == 0;
  problem.dtype = seed % 3 == 0 ? DType::kFloat32 : DType::kBfloat16;
  return random_layer(problem, {24, 3, static_cast<std::int64_t>(seed % 4) * 6, scorer}, seed);
}

DecodeRun run_of(const TestLayer& layer, runtime::Exchange exchange, std::int64_t first, std::int64_t most,
                 std::uint64_t seed) {
  DecodeRun run;
  run.options.exchange = exchange;
  run.steps = make_steps(sequence_lengths(layer), first, most, seed);
  return run;
}

void check_on(std::initializer_list<int> counts, const TestLayer& layer, const DecodeRun& run) {
  for (const int ranks : counts) {
    comm::run_thread_ranks(ranks, [&](comm::Communicator& communicator) { check_decode(communicator, layer, run); });
  }
}

}  // namespace ringmark::test
