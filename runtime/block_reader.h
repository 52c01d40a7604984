// Brings closed blocks to where the kernels can read them: own ones as they stand, the others (and own ones that are
// kept in another format than the kernels read) through the cache. What comes from a peer is compared with its checksum
// before anything reads it.
//
//     reader.start(needs);      // if there is something else to do meanwhile
//     reader.hold(needs);       // the blocks stand in table(), their landmark records in records()
//     ... kernels ...
//     reader.release();         // nothing is pinned any more
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/block_transport.h"
#include "kernels/attend_chunks.h"
#include "kernels/block_table.h"
#include "kvstore/block_cache.h"
#include "runtime/fetch_plan.h"
#include "runtime/kept_layer.h"

namespace ringmark::runtime {

class BlockReader {
 public:
  struct Counts {
    std::int64_t bytes_pulled = 0;
    std::int64_t blocks_pulled = 0;  // each compared with its checksum
    std::int64_t cache_hits = 0;
  };

  // All outlive the reader; the entries of `cache` have entry_bytes() of its shape.
  BlockReader(const KeptLayer& layer, comm::BlockTransport& transport, kvstore::BlockCache& cache);

  // Bytes of a cache entry: the decoded block and the landmark parts of its kv head.
  static std::int64_t entry_bytes(const KeptShape& shape);
  // Whether the kernels can read the block only through the cache.
  bool needs_cache(const BlockId& block) const;
  // Whether the block can be had without a peer, as things stand.
  bool is_here(const BlockId& block) { return !needs_cache(block) || cache_.find(key_of(block)).has_value(); }

  // Begins to read what hold() of the same blocks, the next that needs peers, will wait for.
  void start(std::span<const BlockId> needs);
  // Ascending closed blocks, each once; those that need the cache fit into it. Throws Error(kPeer) when a peer misses
  // the deadline or a block is not what it must be.
  void hold(std::span<const BlockId> needs);
  void release();

  kernels::BlockTable& table() { return table_; }
  const kernels::LandmarkRecords& records() const { return records_; }
  // What happened since it was last asked.
  Counts take_counts() { return std::exchange(counts_, {}); }

 private:
  // Blocks on their way; the reads end before the memory that they write to.
  struct Pull {
    std::vector<BlockId> blocks;
    std::vector<std::byte> parcels;
    std::unique_ptr<comm::PendingReads> reads;
  };

  kvstore::BlockKey key_of(const BlockId& block) const;
  void enter(const BlockId& block, const std::byte* bytes);
  void enter(const BlockId& block, const kvstore::BlockCache::Pin& pin);
  void decode(const BlockId& block, std::span<const std::byte> encoded, std::span<const std::byte> landmark);
  bool is_remote(const BlockId& block) const { return layer_.layout().owner(block.chunk) != layer_.rank(); }
  Pull begin_pull(std::vector<BlockId> blocks);
  void finish_pull(const Pull& pull);

  const KeptLayer& layer_;
  comm::BlockTransport& transport_;
  kvstore::BlockCache& cache_;
  bool decodes_;
  kernels::BlockTable table_;
  kernels::LandmarkRecords records_;
  std::vector<BlockId> entered_;
  std::vector<kvstore::BlockCache::Pin> pins_;
  std::map<ChunkId, std::vector<float>> assembled_;  // records of remote chunks, the parts that are here
  std::optional<Pull> started_;
  Counts counts_;
};

}  // namespace ringmark::runtime
