// The blocks that this rank owns, in the block layout [chunk slot][kv_head][K|V][chunk_size][head_dim], inside an arena
// that the transport exposes. A remote rank computes the address of any block from the layout alone: no directory.
#pragma once

#include <cstdint>

#include "comm/block_transport.h"
#include "core/ids.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "kernels/block_table.h"
#include "partition/layout.h"
#include "partition/sequence_grid.h"

namespace ringmark::kvstore {

class BlockStore {
 public:
  static std::int64_t bytes_of(const AttentionProblem& problem, std::int64_t chunks) {
    return chunks * problem.kv_heads * kernels::BlockShape::of(problem).bytes();
  }

  // Copies the shard's K and V rows ([rows, Hkv, d], rows in the order of the layout) into `arena`, which must have
  // bytes_of(problem, chunks of the rank) and outlive the store. Slots of a partial chunk past its tokens are zeroed.
  // Blocks of chunks without rows are left alone.
  BlockStore(const AttentionProblem& problem, const partition::SequenceGrid& grid, const partition::Layout& layout,
             RankId rank, const RowsView& keys, const RowsView& values, comm::Bytes arena);

  // Enters the owned blocks into a table of all chunks.
  void list_in(kernels::BlockTable& table) const;

  // Byte offset of a block in the arena of its owner.
  static std::int64_t offset_of(const AttentionProblem& problem, std::int64_t slot, std::int64_t kv_head) {
    return (slot * problem.kv_heads + kv_head) * kernels::BlockShape::of(problem).bytes();
  }

 private:
  const AttentionProblem& problem_;
  const partition::Layout& layout_;
  RankId rank_;
  comm::Bytes arena_;
};

}  // namespace ringmark::kvstore
