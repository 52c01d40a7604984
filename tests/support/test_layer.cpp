#include "tests/support/test_layer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include "tests/support/gather_rows.h"

namespace ringmark::test {
namespace {

std::vector<std::byte> random_rows(std::int64_t tokens, std::int64_t width, DType dtype, std::int64_t period,
                                   std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(tokens * width));
  for (float& value : values) value = normal(random);
  for (std::int64_t i = period * width; period > 0 && i < tokens * width; ++i) {
    values[static_cast<std::size_t>(i)] = values[static_cast<std::size_t>(i - period * width)];
  }
  return stored(values, dtype);
}

// Copies the rows of a shard out of a tensor of the whole sequence.
void take(const std::vector<std::byte>& all, const std::vector<Range<TokenId>>& runs, std::int64_t tokens,
          std::vector<std::byte>& out) {
  const auto row_bytes = static_cast<std::int64_t>(all.size()) / tokens;
  std::byte* next = out.data();
  for (const Range<TokenId>& run : runs) {
    const auto bytes = static_cast<std::size_t>(run.size() * row_bytes);
    std::memcpy(next, all.data() + run.begin.value() * row_bytes, bytes);
    next += bytes;
  }
}

}  // namespace

runtime::LayerShard TestLayer::shard(const partition::Layout& layout, RankId rank) const {
  runtime::LayerShard shard(problem, layout.token_count(rank), !retrieval_q.empty());
  const auto runs = layout.token_runs(rank);
  take(q, runs, problem.tokens, shard.q());
  take(k, runs, problem.tokens, shard.k());
  take(v, runs, problem.tokens, shard.v());
  if (!retrieval_q.empty()) take(retrieval_q, runs, problem.tokens, shard.retrieval_q());
  if (!sink_q.empty()) take(sink_q, runs, problem.tokens, shard.sink_q());
  if (landmark_q.empty()) return shard;
  const std::int64_t bytes = problem.heads * problem.head_dim * size_of(problem.dtype);
  for (const ChunkId chunk : layout.chunks_of(rank)) {
    const auto begin = landmark_q.begin() + chunk.value() * bytes;
    shard.landmark_q().insert(shard.landmark_q().end(), begin, begin + bytes);
  }
  return shard;
}

kernels::reference::Layer TestLayer::widened() const {
  using kernels::reference::widen;
  const auto view = [&](const std::vector<std::byte>& bytes, std::int64_t heads) {
    return RowsView{bytes.data(), problem.dtype, problem.tokens, heads, problem.head_dim};
  };
  const std::int64_t rows_of_landmarks =
      std::ssize(landmark_q) / (problem.heads * problem.head_dim * size_of(problem.dtype));
  return {problem,
          policy,
          widen(view(q, problem.heads)),
          widen(view(retrieval_q.empty() ? q : retrieval_q, problem.heads)),
          widen(view(k, problem.kv_heads)),
          widen(view(v, problem.kv_heads)),
          widen({landmark_q.data(), problem.dtype, rows_of_landmarks, problem.heads, problem.head_dim}),
          sink_q.empty() ? std::vector<double>() : widen(view(sink_q, problem.heads))};
}

std::vector<TokenId> TestLayer::tokens() const {
  std::vector<TokenId> tokens;
  for (std::int64_t token = 0; token < problem.tokens; ++token) tokens.emplace_back(token);
  return tokens;
}

AttentionProblem problem_of(std::int64_t tokens, std::int64_t chunk_size, std::int64_t heads, std::int64_t kv_heads,
                            std::int64_t head_dim, DType dtype) {
  AttentionProblem problem;
  problem.tokens = tokens;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.chunk_size = chunk_size;
  problem.dtype = dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return problem;
}

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  narrow(values.data(), dtype, std::ssize(values), bytes.data());
  return bytes;
}

TestLayer random_layer(const AttentionProblem& problem, const AttentionPolicy& policy, std::uint64_t seed, bool tied) {
  std::mt19937_64 random(seed);
  const std::int64_t period = tied ? 3 * problem.chunk_size : 0;
  TestLayer layer{problem, policy, {}, {}, {}, {}};
  layer.q = random_rows(problem.tokens, problem.heads * problem.head_dim, problem.dtype, period, random);
  layer.k = random_rows(problem.tokens, problem.kv_heads * problem.head_dim, problem.dtype, period, random);
  layer.v = random_rows(problem.tokens, problem.kv_heads * problem.head_dim, problem.dtype, 0, random);
  if (seed % 2 == 1) {
    layer.retrieval_q = random_rows(problem.tokens, problem.heads * problem.head_dim, problem.dtype, period, random);
  }
  return layer;
}

TestLayer slice(const TestLayer& layer, std::int64_t begin, std::int64_t end) {
  TestLayer part{layer.problem, layer.policy, {}, {}, {}, {}};
  part.problem.tokens = end - begin;
  part.problem.cu_seqlens.clear();
  const auto cut = [&](const std::vector<std::byte>& all) {
    const auto row_bytes = static_cast<std::int64_t>(all.size()) / layer.problem.tokens;
    return std::vector<std::byte>(all.begin() + begin * row_bytes, all.begin() + end * row_bytes);
  };
  part.q = cut(layer.q);
  part.retrieval_q = cut(layer.retrieval_q);
  part.k = cut(layer.k);
  part.v = cut(layer.v);
  return part;
}

std::int64_t needed_budget(const TestLayer& layer) {
  const partition::SequenceGrid grid(layer.problem, layer.policy);
  const std::int64_t sinks = layer.policy.sinks / layer.problem.chunk_size + 1;
  const std::int64_t window = layer.policy.window / layer.problem.chunk_size + 3;
  // Lists of chosen chunks that heads of one kv head have.
  const std::int64_t lists = std::max<std::int64_t>(1, layer.policy.choosers(layer.problem) / layer.problem.kv_heads);
  const std::int64_t chunks = std::max(sinks + window, std::min(lists * layer.policy.topk, grid.chunk_count()));
  return 2 * chunks * layer.problem.kv_heads * kernels::BlockShape::of(layer.problem).bytes();
}

GatheredResult gather_result(comm::Communicator& communicator, const AttentionProblem& problem,
                             const partition::Layout& layout, const runtime::PrefillResult& result) {
  GatheredResult gathered;
  const std::int64_t heads = problem.heads;
  gathered.out = gather(communicator, layout, problem.tokens, heads * problem.head_dim, result.out);
  gathered.lse = gather(communicator, layout, problem.tokens, heads, result.lse);
  gathered.chunks = gather(communicator, layout, problem.tokens, result.selection.choosers * result.selection.topk,
                           result.selection.chunks);
  const std::vector<TokenId> tokens = layout.tokens_of(RankId(communicator.rank()));
  std::array<std::int64_t, 2> sums = {static_cast<std::int64_t>(kernels::selection_digest(result.selection, tokens)),
                                      result.bytes_fetched};
  communicator.all_reduce_sum("sum digests", sums);
  gathered.digest = static_cast<std::uint64_t>(sums[0]);
  gathered.bytes_fetched = sums[1];
  return gathered;
}

GatheredResult run_prefill(comm::Communicator& communicator, comm::TransportChoice transport, const TestLayer& layer,
                           partition::Balance balance, const runtime::PrefillOptions& options) {
  const AttentionProblem& problem = layer.problem;
  const partition::SequenceGrid grid(problem, layer.policy);
  const partition::Layout layout = partition::make_layout(grid, communicator.size(), balance);
  const RankId rank(communicator.rank());
  runtime::LayerShard shard = layer.shard(layout, rank);
  const runtime::PrefillResult result =
      engine_under_test().prefill(communicator, transport, problem, layer.policy, layout, shard, options);
  return gather_result(communicator, problem, layout, result);
}

kernels::reference::Result run_reference(const TestLayer& layer) {
  return kernels::reference::attend(layer.widened(), layer.tokens(), 1);
}

double max_difference(const std::vector<float>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double most = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (static_cast<double>(got[i]) == want[i]) continue;  // equal infinities too
    const double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
    most = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(most, difference);
  }
  return most;
}

std::string describe(const TestLayer& layer) {
  const AttentionProblem& p = layer.problem;
  std::ostringstream text;
  text << "N=" << p.tokens << " H=" << p.heads << " Hkv=" << p.kv_heads << " d=" << p.head_dim << " S=" << p.chunk_size
       << " slots=" << p.landmark_slots << " dtype=" << name_of(p.dtype) << " W=" << layer.policy.window
       << " K=" << layer.policy.topk << " sinks=" << layer.policy.sinks << " scorer=" << name_of(layer.policy.scorer);
  text << " choice=" << name_of(layer.policy.choice) << " fusion=" << name_of(layer.policy.fusion)
       << " edge=" << name_of(layer.policy.edge) << " segment=" << layer.policy.segment << " cap=" << p.logit_cap
       << " alibi=" << p.alibi << " sink_logits=" << p.sink_logits.size() << " docs=";
  for (const std::int64_t start : p.cu_seqlens) text << start << ",";
  return text.str();
}

}  // namespace ringmark::test
