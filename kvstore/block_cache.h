// Blocks of other ranks (or decoded blocks of this one) that are likely to be wanted again: least recently used by
// bytes, in one arena that is allocated once. Not thread safe.
//
//     if (auto pin = cache.find(key)) use(pin->block());
//     else if (auto place = cache.reserve(key)) { read into place->bytes(); pin = std::move(*place).commit(); }
//
// A block that was not committed never becomes visible; a pinned block is never evicted.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/ids.h"

namespace ringmark::kvstore {

struct BlockKey {
  std::int64_t layer = 0;
  ChunkId chunk;
  std::int64_t kv_head = 0;
  std::uint64_t generation = 0;  // of the chunk's contents
  auto operator<=>(const BlockKey&) const = default;
};

struct BlockCacheStatistics {
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t evictions = 0;
  std::int64_t most_pinned = 0;  // blocks at once
};

class BlockCache {
  struct State;
  struct Entry;

 public:
  // Keeps a block where it is. Move-only; outlives neither the cache nor its arena.
  class Pin {
   public:
    Pin(Pin&& other) noexcept;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();
    std::span<const std::byte> block() const;

   private:
    friend class BlockCache;
    Pin(State* state, Entry* entry);
    State* state_;
    Entry* entry_;
  };

  // Room for a block on its way. Destroyed without commit() it is free again, and the key is not in the cache.
  class Place {
   public:
    Place(Place&& other) noexcept;
    Place& operator=(Place&& other) noexcept;
    ~Place();
    std::span<std::byte> bytes() const;
    Pin commit() &&;

   private:
    friend class BlockCache;
    Place(State* state, Entry* entry);
    State* state_;
    Entry* entry_;
  };

  // budget: bytes of the arena, for as many blocks as fit; each begins at a multiple of 64. Error(kEnvironment) with
  // the number when the memory cannot be had.
  BlockCache(std::int64_t budget, std::int64_t block_bytes);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  std::int64_t capacity() const;  // blocks
  // Counts a hit or a miss. Nothing while the key is only reserved.
  std::optional<Pin> find(const BlockKey& key);
  // Evicts the least recently used block that is not pinned; nothing when all of them are. The key must not be there.
  std::optional<Place> reserve(const BlockKey& key);
  const BlockCacheStatistics& statistics() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace ringmark::kvstore
