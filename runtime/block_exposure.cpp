#include "runtime/block_exposure.h"

#include <iterator>

#include "kvstore/block_store.h"

namespace ringmark::runtime {

comm::Bytes expose_blocks(comm::BlockTransport& transport, const AttentionProblem& problem,
                          const partition::SequenceGrid& grid, const partition::Layout& layout, RankId rank,
                          LayerShard& shard, kernels::BlockTable& table) {
  const comm::Bytes arena =
      transport.expose(kvstore::BlockStore::bytes_of(problem, std::ssize(layout.chunks_of(rank))));
  const kvstore::BlockStore blocks(problem, grid, layout, rank, shard.keys(), shard.values(), arena);
  shard.release_keys_and_values();
  blocks.list_in(table);
  return arena;
}

}  // namespace ringmark::runtime
