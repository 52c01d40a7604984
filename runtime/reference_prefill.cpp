#include "runtime/reference_prefill.h"

#include <cstring>

#include "kernels/reference/attention.h"

namespace ringmark::runtime {
namespace {

// The rows of all ranks in token order.
std::vector<double> gather_rows(comm::Communicator& communicator, const partition::Layout& layout, std::int64_t tokens,
                                const RowsView& own) {
  const std::int64_t row_bytes = own.heads * own.head_dim * size_of(own.dtype);
  std::vector<std::vector<std::byte>> shards;
  std::vector<comm::Bytes> all;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    shards.emplace_back(static_cast<std::size_t>(layout.token_count(RankId(rank)) * row_bytes));
  }
  for (auto& shard : shards) all.emplace_back(shard);
  communicator.all_gather("gather the layer", {own.data, static_cast<std::size_t>(own.bytes())}, all);

  std::vector<std::byte> sequence(static_cast<std::size_t>(tokens * row_bytes));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const std::byte* next = shards[static_cast<std::size_t>(rank)].data();
    for (const Range<TokenId>& run : layout.token_runs(RankId(rank))) {
      const auto bytes = static_cast<std::size_t>(run.size() * row_bytes);
      std::memcpy(sequence.data() + run.begin.value() * row_bytes, next, bytes);
      next += bytes;
    }
  }
  return kernels::reference::widen({sequence.data(), own.dtype, tokens, own.heads, own.head_dim});
}

// The landmark queries of all ranks' chunks by chunk id, or nothing where no rank has any.
std::vector<double> gather_landmark_queries(comm::Communicator& communicator, const partition::Layout& layout,
                                            const RowsView& own) {
  const auto shards = communicator.gather_bytes("gather the layer", {own.data, static_cast<std::size_t>(own.bytes())});
  std::size_t bytes = 0;
  std::int64_t chunks = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    bytes += shards[static_cast<std::size_t>(rank)].size();
    chunks += std::ssize(layout.chunks_of(RankId(rank)));
  }
  if (bytes == 0) return {};
  const std::size_t chunk_bytes = bytes / static_cast<std::size_t>(chunks);
  std::vector<std::byte> all(bytes);
  for (ChunkId chunk(0); chunk < ChunkId(chunks); ++chunk) {
    const std::byte* const shard = shards[static_cast<std::size_t>(layout.owner(chunk).value())].data();
    std::memcpy(all.data() + static_cast<std::size_t>(chunk.value()) * chunk_bytes,
                shard + static_cast<std::size_t>(layout.slot(chunk)) * chunk_bytes, chunk_bytes);
  }
  return kernels::reference::widen({all.data(), own.dtype, chunks, own.heads, own.head_dim});
}

std::vector<float> round_to_float(const std::vector<double>& values) { return {values.begin(), values.end()}; }

}  // namespace

PrefillResult reference_prefill(comm::Communicator& communicator, const AttentionProblem& problem,
                                const AttentionPolicy& policy, const partition::Layout& layout, const LayerShard& shard,
                                int threads) {
  PrefillResult result;
  kernels::reference::Layer layer{problem, policy, {}, {}, {}, {}, {}};
  {
    const auto span = result.clock.time("fetch");
    layer.q = gather_rows(communicator, layout, problem.tokens, shard.queries());
    layer.retrieval_q = gather_rows(communicator, layout, problem.tokens, shard.retrieval_queries());
    layer.k = gather_rows(communicator, layout, problem.tokens, shard.keys());
    layer.v = gather_rows(communicator, layout, problem.tokens, shard.values());
    layer.landmark_q = gather_landmark_queries(communicator, layout, shard.landmark_queries());
    if (shard.has_sink_queries())
      layer.sink_q = gather_rows(communicator, layout, problem.tokens, shard.sink_queries());
  }
  const auto span = result.clock.time("attend");
  const std::vector<TokenId> tokens = layout.tokens_of(RankId(communicator.rank()));
  kernels::reference::Result reference = kernels::reference::attend(layer, tokens, threads);
  result.out = round_to_float(reference.out);
  result.lse = round_to_float(reference.lse);
  result.selection = std::move(reference.selection);
  const auto remote_tokens = problem.tokens - static_cast<std::int64_t>(tokens.size());
  result.bytes_fetched = remote_tokens * problem.kv_heads * problem.head_dim * 2 * size_of(problem.dtype);
  return result;
}

}  // namespace ringmark::runtime
