#include "kvstore/block_tags.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kvstore/crc32c.h"

namespace ringmark::kvstore {

BlockTags::BlockTags(std::int64_t layer, std::int64_t chunks, std::int64_t kv_heads)
    : layer_(layer),
      kv_heads_(kv_heads),
      checksums_(static_cast<std::size_t>(chunks * kv_heads)),
      known_(static_cast<std::size_t>(chunks)) {}

bool BlockTags::knows(ChunkId chunk) const { return known_[static_cast<std::size_t>(chunk.value())]; }

void BlockTags::set(ChunkId chunk, std::span<const std::uint32_t> checksums) {
  require(static_cast<std::int64_t>(checksums.size()) == kv_heads_, "a chunk has one checksum a kv head");
  std::copy(checksums.begin(), checksums.end(), checksums_.begin() + chunk.value() * kv_heads_);
  known_[static_cast<std::size_t>(chunk.value())] = true;
}

std::span<const std::uint32_t> BlockTags::of(ChunkId chunk) const {
  require(knows(chunk), "checksums are asked for of closed chunks only");
  return std::span(checksums_)
      .subspan(static_cast<std::size_t>(chunk.value() * kv_heads_), static_cast<std::size_t>(kv_heads_));
}

void BlockTags::verify(int rank, int peer, ChunkId chunk, std::int64_t kv_head,
                       std::span<const std::byte> bytes) const {
  const std::uint32_t expected = of(chunk)[static_cast<std::size_t>(kv_head)];
  const std::uint32_t found = crc32c(bytes);
  if (found == expected) return;
  fail_peer(fmt::format(
      "rank {}: layer {}: the block of chunk {}, kv head {} that came from rank {} has checksum {:08x}, not {:08x}: "
      "it is damaged or another one",
      rank, layer_, chunk.value(), kv_head, peer, found, expected));
}

}  // namespace ringmark::kvstore
