// What every rank knows of every closed chunk, whoever owns it: the checksums of its blocks as they are kept. A block
// that arrives damaged, or that is another or an older one, is recognised before anything reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"

namespace ringmark::kvstore {

class BlockTags {
 public:
  BlockTags(std::int64_t layer, std::int64_t chunks, std::int64_t kv_heads);

  bool knows(ChunkId chunk) const;
  // Checksums of a closed chunk's blocks, [kv_heads].
  void set(ChunkId chunk, std::span<const std::uint32_t> checksums);
  std::span<const std::uint32_t> of(ChunkId chunk) const;
  // Throws Error(kPeer) naming rank, layer, chunk, kv head and peer when `bytes` are not the block's.
  void verify(int rank, int peer, ChunkId chunk, std::int64_t kv_head, std::span<const std::byte> bytes) const;

 private:
  std::int64_t layer_;
  std::int64_t kv_heads_;
  std::vector<std::uint32_t> checksums_;  // [chunks, kv_heads]
  std::vector<bool> known_;               // by chunk
};

}  // namespace ringmark::kvstore
