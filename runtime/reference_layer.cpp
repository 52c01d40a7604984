#include "runtime/reference_layer.h"

#include <cstring>

namespace ringmark::runtime {
namespace {

std::vector<double> widen_rows(comm::Communicator& communicator, const partition::Layout& layout, std::int64_t tokens,
                               const RowsView& own) {
  const std::vector<std::byte> all =
      gather_rows(communicator, layout, tokens, {own.data, static_cast<std::size_t>(own.bytes())},
                  own.heads * own.head_dim * size_of(own.dtype));
  return kernels::reference::widen({all.data(), own.dtype, tokens, own.heads, own.head_dim});
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

}  // namespace

std::vector<std::byte> gather_rows(comm::Communicator& communicator, const partition::Layout& layout,
                                   std::int64_t tokens, comm::ConstBytes own, std::int64_t row_bytes) {
  std::vector<std::vector<std::byte>> shards;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    shards.emplace_back(static_cast<std::size_t>(layout.token_count(RankId(rank)) * row_bytes));
  }
  const std::vector<comm::Bytes> all(shards.begin(), shards.end());
  communicator.all_gather("gather the layer", own, all);

  std::vector<std::byte> sequence(static_cast<std::size_t>(tokens * row_bytes));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const std::byte* next = shards[static_cast<std::size_t>(rank)].data();
    for (const Range<TokenId>& run : layout.token_runs(RankId(rank))) {
      const auto bytes = static_cast<std::size_t>(run.size() * row_bytes);
      std::memcpy(sequence.data() + run.begin.value() * row_bytes, next, bytes);
      next += bytes;
    }
  }
  return sequence;
}

kernels::reference::Layer gather_layer(comm::Communicator& communicator, const AttentionProblem& problem,
                                       const AttentionPolicy& policy, const partition::Layout& layout,
                                       const LayerShard& shard) {
  const auto all = [&](const RowsView& own) { return widen_rows(communicator, layout, problem.tokens, own); };
  return {problem,
          policy,
          all(shard.queries()),
          all(shard.retrieval_queries()),
          all(shard.keys()),
          all(shard.values()),
          gather_landmark_queries(communicator, layout, shard.landmark_queries()),
          shard.has_sink_queries() ? all(shard.sink_queries()) : std::vector<double>()};
}

std::int64_t gathered_key_bytes(const AttentionProblem& problem, std::int64_t own_rows) {
  return (problem.tokens - own_rows) * problem.kv_heads * problem.head_dim * 2 * size_of(problem.dtype);
}

}  // namespace ringmark::runtime
